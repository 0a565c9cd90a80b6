"""Kernels compiled by another compiler, run on the PTX machine against float64."""
