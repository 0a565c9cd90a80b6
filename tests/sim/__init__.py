"""Tests of the PTX machine on hand-written PTX."""
