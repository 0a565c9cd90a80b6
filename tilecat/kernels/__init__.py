"""The kernels that ship with tilecat, written in its language."""
