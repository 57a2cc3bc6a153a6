#include "aggregate/mpi/storage.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "aggregate/mpi/backends.hpp"

namespace twinrun::aggregation {

const char* backend_name(Backend backend) {
    switch (backend) {
        case Backend::posix: return "posix";
        case Backend::uring: return "uring";
        case Backend::mpiio: return "mpiio";
    }
    return "";
}

Result<Backend> backend_of(const std::string& name) {
    for (const Backend backend : {Backend::posix, Backend::uring, Backend::mpiio}) {
        if (name == backend_name(backend)) return backend;
    }
    return Error{ErrorCode::invalid_argument, "'" + name + "' is no back end: posix, uring or mpiio"};
}

Result<> backend_usable(Backend backend) { return backend == Backend::uring ? uring_usable() : success(); }

Error file_error(const std::string& path, const std::string& what, int error_number) {
    char buffer[256];
    const char* const words = ::strerror_r(error_number, buffer, sizeof buffer);
    ErrorCode code = ErrorCode::io;
    if (error_number == ENOSPC || error_number == EDQUOT) code = ErrorCode::no_space;
    if (error_number == ENOENT || error_number == ENOTDIR) code = ErrorCode::not_found;
    if (error_number == ENOMEM) code = ErrorCode::out_of_memory;
    return Error{code, path + ": " + what + ": " + words};
}

Result<std::unique_ptr<Storage>> storage_of(Backend backend, const OpenFile& file, Mode mode,
                                            std::function<void()> on_end) {
    if (file.striped != nullptr) return adopt_posix_stripes(file, mode, std::move(on_end));
    switch (backend) {
        case Backend::posix: return adopt_posix(file, mode, std::move(on_end));
        case Backend::uring: return adopt_uring(file, mode);
        case Backend::mpiio: break;
    }
    return Error{ErrorCode::unsupported, "this back end takes no file that is open already"};
}

Result<std::unique_ptr<Storage>> open_sub_files(const SubFiles& files, std::function<void()> on_end) {
    return open_posix_parts(files, std::move(on_end));
}

Result<std::unique_ptr<Storage>> open_storage(Backend backend, const std::string& path, const Opening& how,
                                              std::function<void()> on_end) {
    switch (backend) {
        case Backend::posix: return open_posix(path, how, std::move(on_end));
        case Backend::uring: return open_uring(path, how);
        case Backend::mpiio: return open_mpiio(path, how);
    }
    return Error{ErrorCode::unsupported, "this build has not got this back end"};
}

}  // namespace twinrun::aggregation
