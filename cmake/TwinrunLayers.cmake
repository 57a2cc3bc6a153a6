# The folders of src/, each of which includes only folders before it (tools/check_layers.py has the same list and checks
# both this file and every #include).
set(TWINRUN_LAYERS
    base
    platform
    noise
    element
    digest
    tree
    metadata
    compare
    record
    dedup
    restore
    tiers
    capture
    aggregate
    capi
)
