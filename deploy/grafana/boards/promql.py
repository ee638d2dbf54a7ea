"""PromQL in the few forms that the boards use, of the chosen nodes. Matchers are texts: `method="ModelInfer"`."""

from __future__ import annotations

# Grafana fits it to the zoom and the scrape interval.
WINDOW = "$__rate_interval"
NODE = 'instance=~"$instance"'
MODEL = 'model=~"$model"'
# The calls that carry rows; the others are health checks and descriptions.
INFER = 'method=~"ModelInfer|ModelStreamInfer"'
UNLOADED = 'reason="unloaded"'


def rate(metric: str, *matchers: str) -> str:
    """How fast a counter grows, per second."""
    return f"rate({selected(metric, *matchers)}[{WINDOW}])"


def increase(metric: str, *matchers: str) -> str:
    """By how much a counter grows over the window."""
    return f"increase({selected(metric, *matchers)}[{WINDOW}])"


def selected(metric: str, *matchers: str) -> str:
    """The series of a metric that match."""
    return f"{metric}{{{','.join((NODE, *matchers))}}}"


def total(by: str, series: str) -> str:
    """The sum over every other label."""
    return f"sum by ({by}) ({series})"


def ratio(by: str, above: str, below: str) -> str:
    """A ratio of sums, never a mean of ratios; absent, not NaN, where there was nothing to divide by."""
    return f"{total(by, above)} / ({total(by, below)} > 0)"


def share(by: str, part: str, rest: str) -> str:
    """A part of a whole, whose other part is `rest`; absent where there is nothing."""
    return f"{total(by, part)} / ({total(by, part)} + {total(by, rest)} > 0)"


def quantile(q: float, histogram: str, *matchers: str, by: str = "") -> str:
    """A quantile of a histogram, one line for each value of the label `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {total(labels, rate(f'{histogram}_bucket', *matchers))})"


def buckets(histogram: str, *matchers: str) -> str:
    """What fell into each bucket over the window, for a heatmap."""
    return total("le", increase(f"{histogram}_bucket", *matchers))
