// Space for a new file, reserved before it is written, so that a full disk shows at once.
#pragma once

#include <cstdint>

namespace twinrun::file_io {

struct ReservedSpace {
    std::uint64_t bytes = 0;  // from the beginning of the file; 0: this file system reserves nothing
    // The file system fills one file in one thread at a time, however many threads write: threads
    // that take turns spend less processor time.
    bool one_writer = false;
};

// Reserves `bytes` for an empty file, open for reading and writing. Returns 0, or the errno of a
// file that does not fit. A file system that cannot reserve is no error.
//
// sized: the file gets this size too, and reads as zeros until it is written. Writes that do not
// lengthen a file run side by side where they go around the page cache (ext4, XFS). A file of tmpfs
// gets pages of 2 MiB as far as the system has them at hand: small pages take twice the processor
// time.
int reserve_space(int descriptor, std::uint64_t bytes, bool sized, ReservedSpace& got);

}  // namespace twinrun::file_io
