#include "aggregate/mpiio/answers.hpp"

#include <map>
#include <mutex>
#include <string>

namespace twinrun::mpiio {

namespace {

int class_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::invalid_argument: return MPI_ERR_ARG;
        case ErrorCode::no_space: return MPI_ERR_NO_SPACE;
        case ErrorCode::not_found: return MPI_ERR_NO_SUCH_FILE;
        case ErrorCode::io:
        case ErrorCode::damaged: return MPI_ERR_IO;
        default: return MPI_ERR_OTHER;
    }
}

}  // namespace

int code_of(const Error& error) noexcept {
    static std::mutex mutex;
    static std::map<int, int> codes;
    const int kind = class_of(error.code);
    try {
        const std::lock_guard lock(mutex);
        int code = kind;
        const auto at = codes.find(kind);
        if (at != codes.end()) {
            code = at->second;
        } else if (PMPI_Add_error_code(kind, &code) == MPI_SUCCESS) {
            codes.emplace(kind, code);
        } else {
            return kind;
        }
        std::string text = "twinrun_mpiio: " + error.message;
        if (text.size() >= MPI_MAX_ERROR_STRING) text.resize(MPI_MAX_ERROR_STRING - 1);
        PMPI_Add_error_string(code, text.c_str());
        return code;
    } catch (...) {  // no memory: without the text
        return kind;
    }
}

int raise(MPI_File handle, const Error& error) noexcept {
    const int code = code_of(error);
    PMPI_File_call_errhandler(handle, code);
    return code;
}

void fill(MPI_Status* status, std::uint64_t bytes) {
    if (status == MPI_STATUS_IGNORE) return;
    status->MPI_ERROR = MPI_SUCCESS;
    PMPI_Status_set_cancelled(status, 0);
    PMPI_Status_set_elements_x(status, MPI_BYTE, static_cast<MPI_Count>(bytes));
}

std::shared_ptr<File> known(MPI_File handle) noexcept {
    if (handle == MPI_FILE_NULL) return nullptr;
    try {
        return find(handle);
    } catch (...) {
        return nullptr;
    }
}

}  // namespace twinrun::mpiio
