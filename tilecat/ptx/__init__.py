"""PTX instruction text: one function an instruction, in the manual's order of modifiers."""
