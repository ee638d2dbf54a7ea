"""Who is expected back."""

from gatefuse.batching.company import OVERLAP_MEMORY_S, Company

WINDOW_S = 0.003


def _together(company: Company, requests: int, now_s: float) -> None:
    for _ in range(requests):
        company.arrived(now_s)
    for _ in range(requests):
        company.left(now_s)


def test_nobody_at_first() -> None:
    assert Company(WINDOW_S).expected(1.0) == 0


def test_one_client_after_the_other_is_alone() -> None:
    company = Company(WINDOW_S)
    for number in range(10):
        _together(company, 1, 1.0 + number / 10_000)
    assert company.expected(1.001) == 0


def test_as_many_as_were_answered_within_the_window() -> None:
    company = Company(WINDOW_S)
    _together(company, 5, 1.0)
    _together(company, 2, 1.002)
    assert company.expected(1.0029) == 7
    assert company.expected(1.0031) == 2
    assert company.expected(1.0051) == 0


def test_an_overlap_is_forgotten() -> None:
    company = Company(WINDOW_S)
    _together(company, 2, 1.0)
    later_s = 1.0 + OVERLAP_MEMORY_S
    _together(company, 1, later_s)
    assert company.expected(later_s) == 0


def test_a_model_that_waits_for_nobody_remembers_nobody() -> None:
    company = Company(0.0)
    _together(company, 5, 1.0)
    assert company.expected(1.0) == 0


def test_only_the_window_is_remembered() -> None:
    company = Company(WINDOW_S)
    for number in range(1000):
        _together(company, 2, float(number))
    assert repr(company) == "Company(present=0, answered=2)"
