"""What a byte audit runs, as values that travel to the process under the counters as JSON."""

from dataclasses import dataclass
from typing import Any

from gatefuse_kernels.expression import Program, parse_program
from gatefuse_kernels.shapes import Activation, DType, MlpShape
from gatefuse_kernels.traffic import KernelTraffic, Transfer


@dataclass(frozen=True, slots=True)
class MlpCase:
    """One MLP of a backend.

    Attributes:
        model: the name it is served under.
        backend: fused, eager, compiled or textbook.
        dtype: of weights and rows.
        shape: H and I.
        activation: the gate's.
        max_rows: the largest M.
        deterministic: of backend fused.
        rows: M of each call; empty for every row count that is captured as a graph.
    """

    model: str
    backend: str
    dtype: DType
    shape: MlpShape
    activation: Activation
    max_rows: int
    deterministic: bool = False
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """One elementwise program of a backend.

    Attributes:
        model: the name it is served under.
        backend: fused, eager or compiled.
        dtype: of every tensor.
        text: the program.
        scalars: its constants.
        vectors: names of its per-column constants.
        outputs: as given to `parse_program`.
        columns: C.
        rows: M of each call.
    """

    model: str
    backend: str
    dtype: DType
    text: str
    scalars: tuple[tuple[str, float], ...]
    vectors: tuple[str, ...]
    outputs: tuple[str, ...] | None
    columns: int
    rows: tuple[int, ...]

    @property
    def program(self) -> Program:
        """Parsed."""
        return parse_program(self.text, dict(self.scalars), self.vectors, self.outputs)


Case = MlpCase | ProgramCase


@dataclass(frozen=True, slots=True)
class Call:
    """One call that ran under the counters, with what the ledger counted of it.

    Attributes:
        model: the case's.
        backend: likewise.
        rows: M.
        counted: its launches in order.
    """

    model: str
    backend: str
    rows: int
    counted: tuple[KernelTraffic, ...]


def case_to_json(case: Case) -> dict[str, Any]:
    """As a dictionary that `case_of` reads."""
    common = {"model": case.model, "backend": case.backend, "dtype": case.dtype.value}
    if isinstance(case, MlpCase):
        return {
            **common,
            "hidden": case.shape.hidden,
            "intermediate": case.shape.intermediate,
            "activation": case.activation.value,
            "max_rows": case.max_rows,
            "deterministic": case.deterministic,
            "rows": case.rows,
        }
    return {
        **common,
        "text": case.text,
        "scalars": dict(case.scalars),
        "vectors": case.vectors,
        "outputs": case.outputs,
        "columns": case.columns,
        "rows": case.rows,
    }


def case_of(fields: dict[str, Any]) -> Case:
    """Undoes `case_to_json`."""
    model, backend, dtype = fields["model"], fields["backend"], DType(fields["dtype"])
    rows = tuple(fields["rows"])
    if "text" in fields:
        return ProgramCase(
            model=model,
            backend=backend,
            dtype=dtype,
            text=fields["text"],
            scalars=tuple(fields["scalars"].items()),
            vectors=tuple(fields["vectors"]),
            outputs=None if fields["outputs"] is None else tuple(fields["outputs"]),
            columns=fields["columns"],
            rows=rows,
        )
    return MlpCase(
        model=model,
        backend=backend,
        dtype=dtype,
        shape=MlpShape(fields["hidden"], fields["intermediate"]),
        activation=Activation(fields["activation"]),
        max_rows=fields["max_rows"],
        deterministic=fields["deterministic"],
        rows=rows,
    )


def call_to_json(call: Call) -> dict[str, Any]:
    """As a dictionary that `call_of` reads."""
    return {
        "model": call.model,
        "backend": call.backend,
        "rows": call.rows,
        "counted": [
            {
                "kernel": launch.kernel,
                "read_bytes": launch.read_bytes,
                "written_bytes": launch.written_bytes,
                "flops": launch.flops,
            }
            for launch in call.counted
        ],
    }


def call_of(fields: dict[str, Any]) -> Call:
    """Undoes `call_to_json`; which tensors the bytes belong to is lost."""
    return Call(
        fields["model"],
        fields["backend"],
        fields["rows"],
        tuple(
            KernelTraffic(
                each["kernel"],
                (Transfer("read", each["read_bytes"]),),
                (Transfer("written", each["written_bytes"]),),
                each["flops"],
            )
            for each in fields["counted"]
        ),
    )
