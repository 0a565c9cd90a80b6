"""SASS and what is counted in it."""

import pytest

from runtime.ptx_texts import copy_tile, spilling, tiny
from tilecat.errors import ResourceError
from tilecat.runtime import assembler, compile
from tilecat.runtime.disassemble import counts, disassemble, spill_lines

SASS = """
\t//## File "a.py", line 4
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 STL.64 [R1+0xac], R18    (*"SpillRefill"*);
\t//## File "a.py", line 9 inlined at "b.py", line 1
        /*0020*/                   LDL R1, [R2] ;
        /*0030*/              @UP1 LDL.64 R4, [R1+0xac]     (*"SpillRefill"*);
        /*0040*/                   STL [R1], R18            (*"SpillRefill"*);
.L_x_1:
        /*0050*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*10060*/                  NOP;
"""


def test_counts_are_by_name_before_the_dot():
    assert counts(SASS) == {"STL": 2, "LDL": 2, "LDC": 1, "HGMMA": 1}


def test_spill_lines_count_marked_accesses_alone():
    assert [(str(found.loc), found.count) for found in spill_lines(SASS)] == [
        ("a.py:9", 2),
        ("a.py:4", 1),
    ]


def test_disassemble_shows_lines_and_instructions():
    sass = disassemble(compile.assemble(tiny()).cubin)
    assert 'File "kernel.py", line 3' in sass
    assert counts(sass)["STG"] == 1
    tma = counts(disassemble(compile.assemble(copy_tile()).cubin))
    assert (tma["UTMALDG"], tma["UTMASTG"]) == (1, 1)


def test_disassemble_keeps_setmaxnreg():
    module = tiny(body="setmaxnreg.dec.sync.aligned.u32 40;", limits=".minnctapersm 1")
    assert counts(disassemble(compile.assemble(module).cubin))["USETMAXREG"] == 1


def test_disassemble_finds_the_lines_that_spill():
    made = compile.assemble(spilling(), allow_spills=True)
    lines = {found.loc.line: found.count for found in spill_lines(disassemble(made.cubin))}
    assert set(lines) <= {5, 6, 7} and lines[5] > 20
    assert sum(lines.values()) * 4 >= made.spill_bytes


def test_disassemble_refuses_what_is_no_cubin():
    with pytest.raises(ResourceError, match="nvdisasm must read the cubin"):
        disassemble(b"not an ELF")


def test_disassemble_without_its_wheel(monkeypatch):
    monkeypatch.setattr(assembler, "find", lambda name: None)
    with pytest.raises(ResourceError, match="pip install 'nvidia-cuda-nvdisasm"):
        disassemble(b"")
