"""Faults put into the PTX of the shipped kernels: the PTX machine must find each of them."""
