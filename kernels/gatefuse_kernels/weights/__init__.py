"""Weights of gated MLPs: out of checkpoints or random, packed for the kernels, one copy on each device."""
