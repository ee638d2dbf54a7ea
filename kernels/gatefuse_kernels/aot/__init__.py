"""Kernels compiled for a GPU that need not be there, and what the compiler made of them."""
