// MPI's functions that this library replaces. All calls that it does not aggregate go to MPI
// through the names of its profiling interface.
#include <mpi.h>

#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "aggregate/mpiio/file.hpp"
#include "base/caught.hpp"

using twinrun::Error;
using twinrun::ErrorCode;
using twinrun::mpiio::Answer;
using twinrun::mpiio::Call;
using twinrun::mpiio::Fate;
using twinrun::mpiio::File;
using twinrun::mpiio::Mode;
using twinrun::mpiio::Where;

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

// An error code of MPI with this text: one for each class, whose text is that of the last error.
// Then the file's error handler.
int raise(MPI_File handle, const Error& error) {
    static std::mutex mutex;
    static std::map<int, int> codes;
    const int kind = class_of(error.code);
    int code = kind;
    {
        const std::lock_guard lock(mutex);
        const auto at = codes.find(kind);
        if (at != codes.end()) {
            code = at->second;
        } else if (PMPI_Add_error_code(kind, &code) == MPI_SUCCESS) {
            codes.emplace(kind, code);
        } else {
            code = kind;
        }
        if (code != kind) {
            std::string text = "twinrun_mpiio: " + error.message;
            if (text.size() >= MPI_MAX_ERROR_STRING) text.resize(MPI_MAX_ERROR_STRING - 1);
            PMPI_Add_error_string(code, text.c_str());
        }
    }
    PMPI_File_call_errhandler(handle, code);
    return code;
}

// Sets what MPI_Get_count and MPI_Get_elements will return: both libraries keep bytes, whatever the
// datatype.
void fill(MPI_Status* status, std::uint64_t bytes) {
    if (status == MPI_STATUS_IGNORE) return;
    status->MPI_ERROR = MPI_SUCCESS;
    PMPI_Status_set_cancelled(status, 0);
    PMPI_Status_set_elements_x(status, MPI_BYTE, static_cast<MPI_Count>(bytes));
}

std::shared_ptr<File> known(MPI_File handle) {
    if (handle == MPI_FILE_NULL) return nullptr;
    try {
        return twinrun::mpiio::find(handle);
    } catch (...) {
        return nullptr;
    }
}

Answer answer_of(File& file, const Call& call) noexcept {
    try {
        return file.transfer(call);
    } catch (...) {
        Error error = twinrun::caught_error();
        file.abandon(error);
        return Answer{Fate::failed, 0, std::move(error)};
    }
}

template <class Plain>
int collective(MPI_File handle, const Call& call, MPI_Status* status, const Plain& plain) noexcept {
    const auto file = known(handle);
    if (!file || file->split) return plain();
    const Answer answer = answer_of(*file, call);
    switch (answer.fate) {
        case Fate::plain: return plain();
        case Fate::failed: return raise(handle, answer.error);
        case Fate::moved: break;
    }
    fill(status, answer.bytes);
    return MPI_SUCCESS;
}

// A split read of OMPIO never ends where it meets the end of the file (Open MPI 5.0.11:
// mca_fbtl_posix_progress asks for the missing bytes again and again). Its blocking collective read
// counts bytes that are not there; its independent one is right.
#ifdef OPEN_MPI
constexpr bool kSplitReadsHang = true;
#else
constexpr bool kSplitReadsHang = false;
#endif

// The first half of a split read that is plain MPI-IO, by a blocking call.
template <class Whole>
int begin_whole(File& file, const Call& call, const Whole& whole) noexcept {
    MPI_Status status;
    const int code = whole(&status);
    if (code != MPI_SUCCESS) return code;
    MPI_Count bytes = 0;
    PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    file.split = File::Split{call.mode, call.where, static_cast<std::uint64_t>(bytes)};
    return MPI_SUCCESS;
}

// The first half of a split call does it all; MPI allows that.
template <class Plain>
int begin(MPI_File handle, const Call& call, const Plain& plain) noexcept {
    const auto file = known(handle);
    if (!file) return plain();
    if (file->split) {
        return raise(handle, Error{ErrorCode::invalid_argument,
                                   "a split collective call of this file has begun and not ended"});
    }
    const Answer answer = answer_of(*file, call);
    if (answer.fate == Fate::plain) return plain();
    if (answer.fate == Fate::failed) return raise(handle, answer.error);
    file->split = File::Split{call.mode, call.where, answer.bytes};
    return MPI_SUCCESS;
}

template <class Plain, class Whole>
int begin_read(MPI_File handle, const Call& call, const Plain& plain, const Whole& whole) noexcept {
    return begin(handle, call, [&] {
        const auto file = kSplitReadsHang ? known(handle) : nullptr;
        return file ? begin_whole(*file, call, whole) : plain();
    });
}

template <class Plain>
int end(MPI_File handle, Mode mode, Where where, MPI_Status* status, const Plain& plain) noexcept {
    const auto file = known(handle);
    if (!file || !file->split) return plain();
    if (file->split->mode != mode || file->split->where != where) {
        return raise(handle, Error{ErrorCode::invalid_argument,
                                   "another split collective call of this file has begun"});
    }
    fill(status, file->split->bytes);
    file->split.reset();
    return MPI_SUCCESS;
}

Call write_call(Where where, MPI_Offset offset, const void* buffer, MPI_Count count, MPI_Datatype type) {
    return {Mode::write, where, offset, const_cast<void*>(buffer), count, type};
}
Call read_call(Where where, MPI_Offset offset, void* buffer, MPI_Count count, MPI_Datatype type) {
    return {Mode::read, where, offset, buffer, count, type};
}

}  // namespace

#define TWR_MPIIO_API __attribute__((visibility("default")))

extern "C" {

TWR_MPIIO_API int MPI_File_open(MPI_Comm comm, const char* filename, int amode, MPI_Info info, MPI_File* fh) {
    const int code = PMPI_File_open(comm, filename, amode, info, fh);
    if (code != MPI_SUCCESS) return code;
    try {
        if (auto file = File::opened(*fh, comm, filename, amode, info))
            twinrun::mpiio::remember(*fh, std::move(file));
    } catch (...) {
        // Without memory for a few hundred bytes: the file stays MPI-IO's on this rank, and the
        // others would wait for it.
        std::fputs("twinrun_mpiio: out of memory in MPI_File_open\n", stderr);
        PMPI_Abort(comm, 1);
    }
    return code;
}

TWR_MPIIO_API int MPI_File_close(MPI_File* fh) {
    if (fh != nullptr) {
        if (const auto file = known(*fh)) {
            file->close();
            twinrun::mpiio::forget(*fh);
        }
    }
    return PMPI_File_close(fh);
}

TWR_MPIIO_API int MPI_File_set_view(MPI_File fh, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                                    const char* datarep, MPI_Info info) {
    const int code = PMPI_File_set_view(fh, disp, etype, filetype, datarep, info);
    if (code == MPI_SUCCESS) {
        if (const auto file = known(fh)) file->set_view(disp, etype, filetype, datarep);
    }
    return code;
}

// ---- blocking ----

#define TWR_COLLECTIVE(suffix, Count)                                                                       \
    TWR_MPIIO_API int MPI_File_write_all##suffix(MPI_File fh, const void* buf, Count count,                 \
                                                 MPI_Datatype type, MPI_Status* status) {                   \
        return collective(fh, write_call(Where::own_pointer, 0, buf, count, type), status,                  \
                          [&] { return PMPI_File_write_all##suffix(fh, buf, count, type, status); });       \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_at_all##suffix(MPI_File fh, MPI_Offset offset, const void* buf,        \
                                                    Count count, MPI_Datatype type, MPI_Status* status) {   \
        return collective(fh, write_call(Where::at_offset, offset, buf, count, type), status, [&] {         \
            return PMPI_File_write_at_all##suffix(fh, offset, buf, count, type, status);                    \
        });                                                                                                 \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_ordered##suffix(MPI_File fh, const void* buf, Count count,             \
                                                     MPI_Datatype type, MPI_Status* status) {               \
        return collective(fh, write_call(Where::shared_pointer, 0, buf, count, type), status,               \
                          [&] { return PMPI_File_write_ordered##suffix(fh, buf, count, type, status); });   \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_read_all##suffix(MPI_File fh, void* buf, Count count, MPI_Datatype type,     \
                                                MPI_Status* status) {                                       \
        return collective(fh, read_call(Where::own_pointer, 0, buf, count, type), status,                   \
                          [&] { return PMPI_File_read_all##suffix(fh, buf, count, type, status); });        \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_read_at_all##suffix(MPI_File fh, MPI_Offset offset, void* buf, Count count,  \
                                                   MPI_Datatype type, MPI_Status* status) {                 \
        return collective(fh, read_call(Where::at_offset, offset, buf, count, type), status, [&] {          \
            return PMPI_File_read_at_all##suffix(fh, offset, buf, count, type, status);                     \
        });                                                                                                 \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_read_ordered##suffix(MPI_File fh, void* buf, Count count, MPI_Datatype type, \
                                                    MPI_Status* status) {                                   \
        return collective(fh, read_call(Where::shared_pointer, 0, buf, count, type), status,                \
                          [&] { return PMPI_File_read_ordered##suffix(fh, buf, count, type, status); });    \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_all_begin##suffix(MPI_File fh, const void* buf, Count count,           \
                                                       MPI_Datatype type) {                                 \
        return begin(fh, write_call(Where::own_pointer, 0, buf, count, type),                               \
                     [&] { return PMPI_File_write_all_begin##suffix(fh, buf, count, type); });              \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_at_all_begin##suffix(MPI_File fh, MPI_Offset offset, const void* buf,  \
                                                          Count count, MPI_Datatype type) {                 \
        return begin(fh, write_call(Where::at_offset, offset, buf, count, type),                            \
                     [&] { return PMPI_File_write_at_all_begin##suffix(fh, offset, buf, count, type); });   \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_ordered_begin##suffix(MPI_File fh, const void* buf, Count count,       \
                                                           MPI_Datatype type) {                             \
        return begin(fh, write_call(Where::shared_pointer, 0, buf, count, type),                            \
                     [&] { return PMPI_File_write_ordered_begin##suffix(fh, buf, count, type); });          \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_read_all_begin##suffix(MPI_File fh, void* buf, Count count,                  \
                                                      MPI_Datatype type) {                                  \
        return begin_read(                                                                                  \
            fh, read_call(Where::own_pointer, 0, buf, count, type),                                         \
            [&] { return PMPI_File_read_all_begin##suffix(fh, buf, count, type); },                         \
            [&](MPI_Status* status) { return PMPI_File_read##suffix(fh, buf, count, type, status); });      \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_read_at_all_begin##suffix(MPI_File fh, MPI_Offset offset, void* buf,         \
                                                         Count count, MPI_Datatype type) {                  \
        return begin_read(                                                                                  \
            fh, read_call(Where::at_offset, offset, buf, count, type),                                      \
            [&] { return PMPI_File_read_at_all_begin##suffix(fh, offset, buf, count, type); },              \
            [&](MPI_Status* status) {                                                                       \
                return PMPI_File_read_at##suffix(fh, offset, buf, count, type, status);                     \
            });                                                                                             \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_read_ordered_begin##suffix(MPI_File fh, void* buf, Count count,              \
                                                          MPI_Datatype type) {                              \
        return begin_read(                                                                                  \
            fh, read_call(Where::shared_pointer, 0, buf, count, type),                                      \
            [&] { return PMPI_File_read_ordered_begin##suffix(fh, buf, count, type); },                     \
            [&](MPI_Status* status) {                                                                       \
                return PMPI_File_read_ordered##suffix(fh, buf, count, type, status);                        \
            });                                                                                             \
    }

TWR_COLLECTIVE(, int)
#if MPI_VERSION >= 4
TWR_COLLECTIVE(_c, MPI_Count)
#endif

// ---- the second half of split calls ----

TWR_MPIIO_API int MPI_File_write_all_end(MPI_File fh, const void* buf, MPI_Status* status) {
    return end(fh, Mode::write, Where::own_pointer, status,
               [&] { return PMPI_File_write_all_end(fh, buf, status); });
}
TWR_MPIIO_API int MPI_File_write_at_all_end(MPI_File fh, const void* buf, MPI_Status* status) {
    return end(fh, Mode::write, Where::at_offset, status,
               [&] { return PMPI_File_write_at_all_end(fh, buf, status); });
}
TWR_MPIIO_API int MPI_File_write_ordered_end(MPI_File fh, const void* buf, MPI_Status* status) {
    return end(fh, Mode::write, Where::shared_pointer, status,
               [&] { return PMPI_File_write_ordered_end(fh, buf, status); });
}
TWR_MPIIO_API int MPI_File_read_all_end(MPI_File fh, void* buf, MPI_Status* status) {
    return end(fh, Mode::read, Where::own_pointer, status,
               [&] { return PMPI_File_read_all_end(fh, buf, status); });
}
TWR_MPIIO_API int MPI_File_read_at_all_end(MPI_File fh, void* buf, MPI_Status* status) {
    return end(fh, Mode::read, Where::at_offset, status,
               [&] { return PMPI_File_read_at_all_end(fh, buf, status); });
}
TWR_MPIIO_API int MPI_File_read_ordered_end(MPI_File fh, void* buf, MPI_Status* status) {
    return end(fh, Mode::read, Where::shared_pointer, status,
               [&] { return PMPI_File_read_ordered_end(fh, buf, status); });
}

}  // extern "C"
