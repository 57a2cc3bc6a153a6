// Nonblocking collective calls of a file: what the program's thread does when they are made, and
// what a thread of this library does later.
#include <algorithm>

#include "aggregate/mpiio/file.hpp"
#include "aggregate/mpiio/own_part.hpp"
#include "aggregate/mpiio/requests.hpp"

namespace twinrun::mpiio {

// offset: explicit, also of a call with the file pointer. type: a duplicate if it was not MPI's
// own, because the program may free it.
struct File::Prepared {
    Call call;
    OwnPart own;
    bool duplicate = false;

    Prepared() = default;
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;
    ~Prepared() {
        if (duplicate) PMPI_Type_free(&call.type);
    }

    Result<> keep_type() {
        int integers = 0;
        int addresses = 0;
        int types = 0;
        int combiner = MPI_COMBINER_NAMED;
        TWR_MPI("MPI_Type_get_envelope",
                PMPI_Type_get_envelope(call.type, &integers, &addresses, &types, &combiner));
        if (combiner == MPI_COMBINER_NAMED) return success();
        TWR_MPI("MPI_Type_dup", PMPI_Type_dup(call.type, &call.type));
        duplicate = true;
        return success();
    }
};

// While requests of OMPIO are under way, two threads that call MPI look through the list of them at
// once, and the program may crash (Open MPI 5.0.11, mca_common_ompio_progress).
#ifdef OPEN_MPI
constexpr bool kProgressIsAlone = true;
#else
constexpr bool kProgressIsAlone = false;
#endif

bool File::takes_requests(Mode mode) {
    // While calls are under way, the next one follows them, whatever its end will be: ranks learn
    // at different times that a file is MPI-IO's from now on.
    const bool follows = requests_ && !requests_->idle();
    if ((!follows && !usable_) || !member_ || !eligible(mode)) {
        ++plain_calls_;
        return false;
    }
    if (threads_ && !kProgressIsAlone) return true;
    say(threads_ ? "nonblocking collective calls are Open MPI's own: it may not be called by a thread besides"
                 : "nonblocking collective calls are aggregated where the program has MPI_THREAD_MULTIPLE");
    ++plain_calls_;
    return false;
}

Result<std::shared_ptr<File::Prepared>> File::prepare(const Call& call) {
    auto prepared = std::make_shared<Prepared>();
    prepared->call = call;
    OwnPart& own = prepared->own;
    own = own_part(call);
    TWR_CHECK(std::move(own.checked));
    own.checked = success();
    TWR_CHECK(prepared->keep_type());
    TWR_CHECK(pass_pointer(call, own.bytes));
    prepared->call.offset = own.offset;
    return prepared;
}

std::shared_ptr<File::Prepared> File::absent(const Call& call) {
    auto prepared = std::make_shared<Prepared>();
    prepared->call = {call.mode, call.where, 0, nullptr, 0, MPI_BYTE};
    return prepared;
}

Answer File::carry_out(const Prepared& prepared) {
    Answer answer;
    if (auto unready = this->unready()) {
        answer = std::move(*unready);
    } else {
        answer = move(prepared.call, prepared.own);
    }
    ++(answer.fate == Fate::plain ? plain_calls_ : aggregated_calls_);
    return answer.fate == Fate::plain ? by_mpi(prepared) : answer;
}

namespace {

int begin_by_mpi(MPI_File handle, const Call& call, MPI_Request* request) {
#if MPI_VERSION >= 4
    return call.mode == Mode::write
               ? PMPI_File_iwrite_at_all_c(handle, call.offset, call.buffer, call.count, call.type, request)
               : PMPI_File_iread_at_all_c(handle, call.offset, call.buffer, call.count, call.type, request);
#else
    const int count = static_cast<int>(call.count);
    return call.mode == Mode::write
               ? PMPI_File_iwrite_at_all(handle, call.offset, call.buffer, count, call.type, request)
               : PMPI_File_iread_at_all(handle, call.offset, call.buffer, count, call.type, request);
#endif
}

}  // namespace

// Plain MPI-IO, by a call that does not block: this thread only looks whether it has ended. A
// collective call that blocks would keep ROMIO's lock until the other ranks come.
Answer File::by_mpi(const Prepared& prepared) const {
    const Call& call = prepared.call;
    if (call.mode == Mode::write) note_change(Change::ends_with_call);
    MPI_Status status;
    MPI_Request request = MPI_REQUEST_NULL;
    int code = begin_by_mpi(handle_, call, &request);
    int ended = 0;
    for (Nap nap; code == MPI_SUCCESS; nap.take()) {
        code = PMPI_Test(&request, &ended, &status);
        if (ended != 0) break;
    }
    if (code != MPI_SUCCESS) return failed(aggregation::mpi_error("a nonblocking collective call", code));
    MPI_Count bytes = 0;
    PMPI_Get_elements_x(&status, MPI_BYTE, &bytes);
    return Answer{Fate::moved, static_cast<std::uint64_t>(std::max<MPI_Count>(bytes, 0)), {}};
}

Requests& File::requests() {
    if (!requests_) requests_ = std::make_unique<Requests>(*this);
    return *requests_;
}

void File::finish_requests() {
    if (requests_) requests_->finish();
}

}  // namespace twinrun::mpiio
