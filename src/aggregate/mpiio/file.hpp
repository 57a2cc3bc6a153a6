// A file that a program opened by MPI-IO, beside MPI's own handle: its view, and how collective
// calls of it are aggregated.
//
// MPI's handle stays what it is: it has the view, both file pointers, hints and modes, and every
// call that is not aggregated goes to it. Aggregated calls use descriptors of their own for the
// same file, and then move MPI's file pointers.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/mpi/datatype.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpiio/hints.hpp"
#include "aggregate/mpiio/pool.hpp"
#include "base/result.hpp"

namespace twinrun::mpiio {

using aggregation::Mode;

enum class Where : std::uint8_t { at_offset, own_pointer, shared_pointer };

// A collective call of a program. offset: in etypes, for Where::at_offset.
struct Call {
    Mode mode = Mode::read;
    Where where = Where::at_offset;
    MPI_Offset offset = 0;
    void* buffer = nullptr;  // a write only reads from it
    MPI_Count count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
};

// The outcome of a call, equal on all ranks.
enum class Fate : std::uint8_t {
    plain,   // it is MPI-IO's affair, and nothing was done
    moved,   // it was aggregated
    failed,  // an error of this rank or of another
};
struct Answer {
    Fate fate = Fate::plain;
    std::uint64_t bytes = 0;  // moved, of this rank
    Error error;
};

class Requests;

class File {
   public:
    // [collective] of a file that MPI has just opened. Never fails: a file that cannot be
    // aggregated stays MPI-IO's.
    static std::shared_ptr<File> opened(MPI_File handle, MPI_Comm comm, const char* name, int amode,
                                        MPI_Info info);
    // Before MPI makes a new file, by the first rank that opens it: makes it with the stripes that
    // the hints ask for, where that is possible. MPI then finds an empty file.
    static void lay_out_new(MPI_Comm comm, const char* name, int amode, MPI_Info info) noexcept;
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    void set_view(MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char* datarep);
    // [collective]
    Answer transfer(const Call& call);
    // For an error that keeps this rank from a call that the others are in: they get it too.
    void abandon(const Error& error) noexcept;
    // Gives back what the next file may use. Call it before MPI closes the file.
    void close();

    // A nonblocking collective call has two parts. prepare() is local: it looks at the view, the
    // file pointer and the datatypes as they are now, and moves the pointer. carry_out()
    // [collective] moves the data; a thread calls it, in the order of the calls (requests.hpp).
    struct Prepared;
    // Whether such calls are aggregated now: equal on all ranks.
    bool takes_requests(Mode mode);
    // Errors: arguments that MPI forbids. The call is then this rank's alone, and it takes part in
    // those of the other ranks with absent().
    Result<std::shared_ptr<Prepared>> prepare(const Call& call);
    static std::shared_ptr<Prepared> absent(const Call& call);
    // Never plain: where the call cannot be aggregated, MPI has done it.
    Answer carry_out(const Prepared& prepared);
    Requests& requests();
    // Waits until no nonblocking call is under way. All other collective calls do so first.
    void finish_requests();
    [[nodiscard]] MPI_Comm comm() const { return comm_; }

    // A split collective call that was aggregated when it began.
    struct Split {
        Mode mode = Mode::read;
        Where where = Where::at_offset;
        std::uint64_t bytes = 0;
    };
    std::optional<Split> split;
    // One that failed when it began. A program may still call its second half.
    std::optional<Split> failed_split;

   private:
    // Why a call goes to MPI-IO. Ranks agree on the largest.
    enum Reason : std::uint8_t { kNone, kSettled, kNoMemory, kDevice, kDatatype, kView, kFar };
    static const char* text_of(Reason reason);
    struct Layout;  // where the bytes of a call lie
    struct OwnPart;

    File();
    Result<> open_own(const char* name, int amode, MPI_Info info, std::uint64_t (&about)[2], int& problem);
    Result<> view_bytes();
    bool make_member(MPI_Comm comm, std::uint64_t settings, std::int64_t number);
    void settle(const std::string& why);  // from now on every call of this file is plain
    void say(const std::string& why) const;
    [[nodiscard]] bool allows(Mode mode) const;
    static constexpr const char* kFilesLimited =
        "the size of files is limited (RLIMIT_FSIZE) to less than 16 MiB";
    static bool files_are_limited();
    Result<> start();  // [collective] makes the aggregate
    Result<MPI_Offset> place(const Call& call, std::uint64_t bytes);
    Result<Layout> lay_out(const Call& call, MPI_Offset offset, Reason& reason) const;
    [[nodiscard]] bool eligible(Mode mode) const;
    std::optional<Answer> unready();
    [[nodiscard]] Result<std::uint64_t> bytes_of(const Call& call) const;
    OwnPart own_part(const Call& call);
    void put_figures(const OwnPart& own, std::span<double> figures) const;
    Result<> look_at_storage(aggregation::Outcome& outcome);
    Result<> write_for_all(const Call& call, std::optional<aggregation::Move>& ahead,
                           aggregation::Outcome& outcome) const;
    Result<> cut_at_end(Layout& layout, std::uint64_t file_bytes);
    Answer aggregate(const Call& call);
    std::optional<Answer> move_stretch(const Call& call);
    std::optional<Answer> move_alone(const Call& call, const OwnPart& own) const;
    [[nodiscard]] Answer move_piece(Mode mode, const aggregation::Piece& piece) const;
    std::optional<std::uint64_t> read_ahead(const Call& call, const OwnPart& own);
    Answer move(const Call& call, OwnPart own);
    [[nodiscard]] Answer by_mpi(const Prepared& prepared) const;
    Result<> declare(const Layout& layout, Mode mode, std::uint64_t zero);
    Result<> pass_pointer(const Call& call, std::uint64_t bytes);

    MPI_File handle_ = MPI_FILE_NULL;
    MPI_Comm comm_ = MPI_COMM_NULL;
    std::string name_;
    int rank_ = 0;
    int ranks_ = 0;
    int amode_ = 0;
    int number_ = -1;  // descriptor
    Hints hints_;
    std::optional<aggregation::StorageTraits> traits_;  // on rank 0, since the first collective call
    std::atomic<bool> usable_{false};                   // the thread of nonblocking calls may end it
    bool threads_ = false;                              // MPI_THREAD_MULTIPLE, on all ranks

    struct View {
        std::int64_t displacement = 0;
        std::uint64_t etype_bytes = 1;
        aggregation::TypeStream filetype;
        bool usable = false;  // on this rank
        bool whole = false;   // all bytes from the displacement on
    };
    View view_;
    bool native_ = true;

    std::shared_ptr<Member> member_;
    twr_aggregate* aggregate_ = nullptr;  // the member's, since the first collective call
    // Reads of this rank alone before the ranks agree (read_ahead).
    std::optional<std::uint64_t> least_ahead_;  // their least bytes, since the first collective read
    std::uint64_t changes_seen_ = 0;            // see note_change()
    unsigned ahead_pause_ = 0;                  // calls until the next attempt
    unsigned ahead_pauses_ = 0;                 // the last pause

    std::uint64_t shared_total_ = 0;  // etypes of all ranks, of a call with the shared pointer
    std::int64_t shared_begin_ = 0;
    std::atomic<std::uint64_t> aggregated_calls_{0};
    std::atomic<std::uint64_t> plain_calls_{0};
    std::uint64_t plans_ = 0;
    std::unique_ptr<Requests> requests_;  // since the first nonblocking call
};

// What this process changes in files by MPI-IO itself, beside aggregated calls: bytes or sizes.
// Before the ranks have agreed on something after that, none of them may take what it read alone
// for the file's content (File::read_ahead). Any thread may call this, often: it only counts.
enum class Change : std::uint8_t {
    ends_with_call,
    ends_later,  // nobody tells this library when
};
void note_change(Change change) noexcept;
[[nodiscard]] std::uint64_t changes_noted() noexcept;  // so far

// The files that are open. Any thread may call these.
void remember(MPI_File handle, std::shared_ptr<File> file);
[[nodiscard]] std::shared_ptr<File> find(MPI_File handle);
void forget(MPI_File handle);

}  // namespace twinrun::mpiio
