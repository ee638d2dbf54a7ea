"""How kernels are launched, captured into graphs, and counted where they run."""
