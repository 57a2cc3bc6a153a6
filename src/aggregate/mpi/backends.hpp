// The back ends of Storage, each in a file of its own. Errors of opening are file_error()'s.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "aggregate/mpi/storage.hpp"
#include "base/result.hpp"

namespace twinrun::aggregation {

// A file that a back end opens, or, where it takes one, a file that is open already.
using MadeStorage = Result<std::unique_ptr<Storage>>;

MadeStorage open_posix(const std::string& path, const Opening& how, std::function<void()> on_end);
MadeStorage adopt_posix(const OpenFile& file, Mode mode, std::function<void()> on_end);
MadeStorage adopt_posix_stripes(const OpenFile& file, Mode mode, std::function<void()> on_end);
MadeStorage open_posix_parts(const SubFiles& files, std::function<void()> on_end);
// Errors: unsupported: this build or this machine lacks io_uring.
Result<> uring_usable();
MadeStorage open_uring(const std::string& path, const Opening& how);
MadeStorage adopt_uring(const OpenFile& file, Mode mode);
MadeStorage open_mpiio(const std::string& path, const Opening& how);

}  // namespace twinrun::aggregation
