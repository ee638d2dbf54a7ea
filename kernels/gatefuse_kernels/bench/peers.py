"""The competitors: every other way to compute the MLP, behind one protocol."""

from typing import Protocol

import torch

from gatefuse_kernels.bench.capture import Forward
from gatefuse_kernels.bench.compilers import CompiledPeer
from gatefuse_kernels.bench.packages import FlashSwiglu, Liger
from gatefuse_kernels.eager import EagerMlp
from gatefuse_kernels.ledger import Ledger
from gatefuse_kernels.swiglu.gate import launch_gate
from gatefuse_kernels.weights.packed import MlpWeights


class Peer(Protocol):
    """One competitor."""

    @property
    def name(self) -> str:
        """As in `options.PEERS`."""

    @property
    def version(self) -> str:
        """Of the package it comes from; empty where that is not installed."""

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        """Its computation with these weights at this M; its first call may compile and tune."""


class EagerPeer:
    """Five torch ops, each rounding: three products, silu, multiply."""

    name = "eager"
    version = torch.__version__

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        """See `Peer`."""
        mlp = EagerMlp(weights, Ledger(), rows)
        out = torch.empty(
            rows, weights.shape.hidden, dtype=weights.down.dtype, device=weights.device
        )

        def forward(x: torch.Tensor) -> torch.Tensor:
            mlp(x, out)
            return out

        return forward


class MergedPeer:
    """cuBLAS for gate and up in one product, our elementwise gate, cuBLAS for down."""

    name = "merged"
    version = torch.__version__

    def bind(self, weights: MlpWeights, rows: int) -> Forward:
        """See `Peer`."""
        intermediate = weights.shape.intermediate

        def forward(x: torch.Tensor) -> torch.Tensor:
            both = torch.mm(x, weights.gate_up.t())
            h = torch.empty(rows, intermediate, dtype=x.dtype, device=x.device)
            launch_gate(both[:, :intermediate], both[:, intermediate:], h, weights.activation)
            return torch.mm(h, weights.down.t())

        return forward


def all_peers() -> dict[str, Peer]:
    """Every peer by name, in the order of `options.PEERS`."""
    peers: tuple[Peer, ...] = (
        EagerPeer(),
        CompiledPeer("compiled", mode=None),
        CompiledPeer("max_autotune", mode="max-autotune-no-cudagraphs"),
        MergedPeer(),
        FlashSwiglu(),
        Liger(),
    )
    return {peer.name: peer for peer in peers}
