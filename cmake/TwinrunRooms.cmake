# The rooms of src/core/: each is a folder, an object library twinrun_core_<room>, and a folder of tests tests/core/<room>. What a
# room may include is a table in tools/check_layers.py, which also checks that this list is complete.
set(TWINRUN_CORE_ROOMS
    base
    platform
    device
    element
    digest
    tree
    metadata
    source
    difference
    sketch
    engine
    record
    dedup
    restore
    history
    capture
    comparison
    capi
)
