#!/usr/bin/env bash
# Runs a command with a fixed memory layout where the system allows that: older ThreadSanitizer runtimes cannot place
# their shadow when vm.mmap_rnd_bits is above 28 ("unexpected memory mapping").
if setarch -R true 2>/dev/null; then
    exec setarch -R "$@"
fi
exec "$@"
