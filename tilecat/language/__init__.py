"""The language: what a kernel's author writes, and the trace that records it."""
