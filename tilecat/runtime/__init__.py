"""From a kernel's text to its run: ptxas and the disk cache, the driver's launch, the PTX machine.

`compile.assemble` makes the cubin and `arrays.view` looks at a caller's array. `deferred` hands
out what is slow to import: `deferred.launch().Launcher` launches, `deferred.machine().launch`
simulates.
"""
