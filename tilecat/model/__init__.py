"""Models of the hardware that run on the CPU: what to expect before anything is measured."""
