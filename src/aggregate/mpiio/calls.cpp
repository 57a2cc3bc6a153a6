// MPI's functions that this library replaces. All calls that it does not aggregate go to MPI
// through the names of its profiling interface.
#include <mpi.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "aggregate/mpiio/answers.hpp"
#include "aggregate/mpiio/file.hpp"
#include "aggregate/mpiio/requests.hpp"
#include "base/caught.hpp"

using twinrun::Error;
using twinrun::ErrorCode;
using twinrun::mpiio::Answer;
using twinrun::mpiio::Call;
using twinrun::mpiio::Change;
using twinrun::mpiio::Fate;
using twinrun::mpiio::File;
using twinrun::mpiio::fill;
using twinrun::mpiio::known;
using twinrun::mpiio::Mode;
using twinrun::mpiio::note_change;
using twinrun::mpiio::raise;
using twinrun::mpiio::Where;

namespace {

Answer answer_of(File& file, const Call& call) noexcept {
    try {
        return file.transfer(call);
    } catch (...) {
        Error error = twinrun::caught_error();
        file.abandon(error);
        return Answer{Fate::failed, 0, std::move(error)};
    }
}

// A call that MPI-IO does itself.
template <class Plain>
int by_mpi(Mode mode, const Plain& plain) noexcept {
    if (mode == Mode::write) note_change(Change::ends_with_call);
    return plain();
}

template <class Plain>
int collective(MPI_File handle, const Call& call, MPI_Status* status, const Plain& plain) noexcept {
    const auto file = known(handle);
    if (file) file->finish_requests();
    if (!file || file->split) return by_mpi(call.mode, plain);
    const Answer answer = answer_of(*file, call);
    switch (answer.fate) {
        case Fate::plain: return by_mpi(call.mode, plain);
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
    if (code != MPI_SUCCESS) {
        file.failed_split = File::Split{call.mode, call.where, 0};
        return code;
    }
    MPI_Count bytes = 0;
    PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    file.split = File::Split{call.mode, call.where, static_cast<std::uint64_t>(bytes)};
    return MPI_SUCCESS;
}

// The first half of a split call does it all; MPI allows that.
template <class Plain>
int begin(MPI_File handle, const Call& call, const Plain& plain) noexcept {
    const auto file = known(handle);
    if (!file) return by_mpi(call.mode, plain);
    if (file->split) {
        return raise(handle, Error{ErrorCode::invalid_argument,
                                   "a split collective call of this file has begun and not ended"});
    }
    file->finish_requests();
    file->failed_split.reset();
    const Answer answer = answer_of(*file, call);
    if (answer.fate == Fate::plain) return by_mpi(call.mode, plain);
    if (answer.fate == Fate::failed) {
        file->failed_split = File::Split{call.mode, call.where, 0};
        return raise(handle, answer.error);
    }
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
    // MPI has no such call: Open MPI would look for a request that is not there.
    if (file && file->failed_split && file->failed_split->mode == mode &&
        file->failed_split->where == where) {
        file->failed_split.reset();
        return raise(handle, Error{ErrorCode::invalid_argument,
                                   "the split collective call that this one ends has failed when it began"});
    }
    if (!file || !file->split) return by_mpi(mode, plain);
    if (file->split->mode != mode || file->split->where != where) {
        return raise(handle, Error{ErrorCode::invalid_argument,
                                   "another split collective call of this file has begun"});
    }
    fill(status, file->split->bytes);
    file->split.reset();
    return MPI_SUCCESS;
}

// A nonblocking call. Without memory for a few hundred bytes the other ranks would wait for this
// one.
template <class Plain>
int nonblocking(MPI_File handle, const Call& call, MPI_Request* request, const Plain& plain) noexcept {
    const auto file = known(handle);
    if (!file || file->split || !file->takes_requests(call.mode)) {
        if (call.mode == Mode::write) note_change(Change::ends_later);
        return plain();
    }
    try {
        return file->requests().add(call, handle, request);
    } catch (...) {
        std::fputs("twinrun_mpiio: out of memory in a nonblocking collective call\n", stderr);
        PMPI_Abort(file->comm(), 1);
        return MPI_ERR_NO_MEM;
    }
}

// Any other collective call of a file: MPI's, after the nonblocking ones before it. It may change
// the file's size.
template <class Plain>
int in_turn(MPI_File handle, const Plain& plain) noexcept {
    note_change(Change::ends_with_call);
    if (const auto file = known(handle)) file->finish_requests();
    return plain();
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
    File::lay_out_new(comm, filename, amode, info);
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
    // Its descriptor is closed when this ends: after MPI's, for which ranks wait for each other.
    const auto file = fh != nullptr ? known(*fh) : nullptr;
    if (file) {
        file->close();
        twinrun::mpiio::forget(*fh);
    }
    return PMPI_File_close(fh);
}

TWR_MPIIO_API int MPI_File_set_view(MPI_File fh, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                                    const char* datarep, MPI_Info info) {
    if (const auto file = known(fh)) file->finish_requests();
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

// ---- nonblocking: since MPI 3.1 ----

#define TWR_NONBLOCKING(suffix, Count)                                                                       \
    TWR_MPIIO_API int MPI_File_iwrite_all##suffix(MPI_File fh, const void* buf, Count count,                 \
                                                  MPI_Datatype type, MPI_Request* request) {                 \
        return nonblocking(fh, write_call(Where::own_pointer, 0, buf, count, type), request,                 \
                           [&] { return PMPI_File_iwrite_all##suffix(fh, buf, count, type, request); });     \
    }                                                                                                        \
    TWR_MPIIO_API int MPI_File_iwrite_at_all##suffix(MPI_File fh, MPI_Offset offset, const void* buf,        \
                                                     Count count, MPI_Datatype type, MPI_Request* request) { \
        return nonblocking(fh, write_call(Where::at_offset, offset, buf, count, type), request, [&] {        \
            return PMPI_File_iwrite_at_all##suffix(fh, offset, buf, count, type, request);                   \
        });                                                                                                  \
    }                                                                                                        \
    TWR_MPIIO_API int MPI_File_iread_all##suffix(MPI_File fh, void* buf, Count count, MPI_Datatype type,     \
                                                 MPI_Request* request) {                                     \
        return nonblocking(fh, read_call(Where::own_pointer, 0, buf, count, type), request,                  \
                           [&] { return PMPI_File_iread_all##suffix(fh, buf, count, type, request); });      \
    }                                                                                                        \
    TWR_MPIIO_API int MPI_File_iread_at_all##suffix(MPI_File fh, MPI_Offset offset, void* buf, Count count,  \
                                                    MPI_Datatype type, MPI_Request* request) {               \
        return nonblocking(fh, read_call(Where::at_offset, offset, buf, count, type), request, [&] {         \
            return PMPI_File_iread_at_all##suffix(fh, offset, buf, count, type, request);                    \
        });                                                                                                  \
    }

#if MPI_VERSION * 10 + MPI_SUBVERSION >= 31
TWR_NONBLOCKING(, int)
#endif
#if MPI_VERSION >= 4
TWR_NONBLOCKING(_c, MPI_Count)
#endif

// ---- independent writes: MPI-IO's, and noted ----

#define TWR_INDEPENDENT(suffix, Count)                                                                      \
    TWR_MPIIO_API int MPI_File_write##suffix(MPI_File fh, const void* buf, Count count, MPI_Datatype type,  \
                                             MPI_Status* status) {                                          \
        note_change(Change::ends_with_call);                                                                \
        return PMPI_File_write##suffix(fh, buf, count, type, status);                                       \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_at##suffix(MPI_File fh, MPI_Offset offset, const void* buf,            \
                                                Count count, MPI_Datatype type, MPI_Status* status) {       \
        note_change(Change::ends_with_call);                                                                \
        return PMPI_File_write_at##suffix(fh, offset, buf, count, type, status);                            \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_write_shared##suffix(MPI_File fh, const void* buf, Count count,              \
                                                    MPI_Datatype type, MPI_Status* status) {                \
        note_change(Change::ends_with_call);                                                                \
        return PMPI_File_write_shared##suffix(fh, buf, count, type, status);                                \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_iwrite##suffix(MPI_File fh, const void* buf, Count count, MPI_Datatype type, \
                                              MPI_Request* request) {                                       \
        note_change(Change::ends_later);                                                                    \
        return PMPI_File_iwrite##suffix(fh, buf, count, type, request);                                     \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_iwrite_at##suffix(MPI_File fh, MPI_Offset offset, const void* buf,           \
                                                 Count count, MPI_Datatype type, MPI_Request* request) {    \
        note_change(Change::ends_later);                                                                    \
        return PMPI_File_iwrite_at##suffix(fh, offset, buf, count, type, request);                          \
    }                                                                                                       \
    TWR_MPIIO_API int MPI_File_iwrite_shared##suffix(MPI_File fh, const void* buf, Count count,             \
                                                     MPI_Datatype type, MPI_Request* request) {             \
        note_change(Change::ends_later);                                                                    \
        return PMPI_File_iwrite_shared##suffix(fh, buf, count, type, request);                              \
    }

TWR_INDEPENDENT(, int)
#if MPI_VERSION >= 4
TWR_INDEPENDENT(_c, MPI_Count)
#endif

// ---- what waits for the nonblocking calls before it ----

TWR_MPIIO_API int MPI_File_sync(MPI_File fh) {
    return in_turn(fh, [&] { return PMPI_File_sync(fh); });
}
TWR_MPIIO_API int MPI_File_set_size(MPI_File fh, MPI_Offset size) {
    return in_turn(fh, [&] { return PMPI_File_set_size(fh, size); });
}
TWR_MPIIO_API int MPI_File_preallocate(MPI_File fh, MPI_Offset size) {
    return in_turn(fh, [&] { return PMPI_File_preallocate(fh, size); });
}
TWR_MPIIO_API int MPI_File_set_atomicity(MPI_File fh, int flag) {
    return in_turn(fh, [&] { return PMPI_File_set_atomicity(fh, flag); });
}
TWR_MPIIO_API int MPI_File_set_info(MPI_File fh, MPI_Info info) {
    return in_turn(fh, [&] { return PMPI_File_set_info(fh, info); });
}
TWR_MPIIO_API int MPI_File_seek_shared(MPI_File fh, MPI_Offset offset, int whence) {
    return in_turn(fh, [&] { return PMPI_File_seek_shared(fh, offset, whence); });
}

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
