#include "aggregate/mpiio/file.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "aggregate/mpi/descriptor.hpp"
#include "aggregate/mpi/target.hpp"
#include "aggregate/mpiio/own_part.hpp"
#include "aggregate/mpiio/requests.hpp"
#include "base/caught.hpp"
#include "base/checked.hpp"

namespace twinrun::mpiio {

using aggregation::Outcome;
using aggregation::Team;

namespace {

// Of Vote::figures.largest. Zero: nothing to say, which never wins. Behind them: LastTransfer's.
enum Figure : std::size_t { kReason, kEnd, kUnready, kNotAhead, kOwnFigures };
static_assert(std::size_t{kOwnFigures} + std::size_t{LastTransfer::kFigures} <= aggregation::kFigures);
// Of Vote::figures.sums: ranks that have read data before the agreement.
constexpr std::size_t kHaveRead = 0;
// Of kUnready: how far a rank is before the agreement.
constexpr double kDeposited = 0, kPrepared = 1, kNotPrepared = 2;
// Of Outcome::payload, behind the traits of storage: 1 where rank 0 has written for all.
constexpr std::size_t kWritten = 5;

// ROMIO takes a prefix from a name. These name file systems whose files are the kernel's. Open MPI
// knows no prefixes.
const char* without_prefix(const char* name) {
#ifdef ROMIO_VERSION
    for (const char* const prefix :
         {"ufs:", "xfs:", "lustre:", "gpfs:", "panfs:", "ext2:", "ext3:", "ext4:", "btrfs:", "bluegene:"}) {
        const std::size_t length = std::strlen(prefix);
        if (::strncasecmp(name, prefix, length) == 0) return name + length;
    }
#endif
    return name;
}

// File systems where a write by another process is not seen at once, or where two writers of one
// page may undo each other.
bool incoherent(int number) {
    constexpr std::array<std::uint32_t, 5> kKinds{0x6969,       // NFS
                                                  0xFF534D42,   // CIFS
                                                  0xFE534D42,   // SMB2
                                                  0x517B,       // SMB
                                                  0x5346414F};  // AFS
    struct statfs system {};
    if (::fstatfs(number, &system) != 0) return true;
    return std::find(kKinds.begin(), kKinds.end(), static_cast<std::uint32_t>(system.f_type)) != kKinds.end();
}

// What look_at_storage() has put there.
aggregation::StorageTraits traits_in(const Outcome& outcome) {
    return {outcome.payload[1], {outcome.payload[2], outcome.payload[3], outcome.payload[4]}};
}

// By how many bytes a plan may move in the file, or by a multiple of them. Blocks of network file
// systems have one writer each, so that a plan moves by whole blocks there.
std::uint64_t step_of(const aggregation::StorageTraits& traits) {
    return traits.direct.alignment != 1 ? traits.block : 1;
}

// Changes that this process has made beside aggregated calls.
std::atomic<std::uint64_t>& changes() {
    static std::atomic<std::uint64_t> all{0};
    return all;
}
// Whether one has begun of which this library does not see the end.
std::atomic<bool>& changes_later() {
    static std::atomic<bool> any{false};
    return any;
}

// Open MPI makes files for the memory that ranks of a node share, of 4 MB and more. Where it may
// not, it fails on one rank, and the others wait for ever.
constexpr const char* kFilesLimited = "the size of files is limited (RLIMIT_FSIZE) to less than 16 MiB";
bool files_are_limited() {
#ifdef OPEN_MPI
    constexpr rlim_t kEnough = rlim_t{16} << 20;
    rlimit limit{};
    return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kEnough;
#else
    return false;
#endif
}

// Memory of a GPU, which this library must not touch. Asks CUDA's driver, if the program has loaded
// it.
bool on_device(const void* buffer) {
    using Ask = int (*)(void*, int, unsigned long long);
    static const Ask ask = reinterpret_cast<Ask>(::dlsym(RTLD_DEFAULT, "cuPointerGetAttribute"));
    if (ask == nullptr || buffer == nullptr) return false;
    constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    constexpr unsigned kDevice = 2;
    unsigned type = 0;
    return ask(&type, kMemoryType, reinterpret_cast<std::uintptr_t>(buffer)) == 0 && type == kDevice;
}

bool reports() {
    static const bool given = [] {
        const char* const text = std::getenv("TWINRUN_MPIIO_REPORT");
        return text != nullptr && *text != '\0' && std::strcmp(text, "0") != 0;
    }();
    return given;
}

}  // namespace

File::File() = default;

// ---- opening ----

void File::say(const std::string& why) const {
    static std::mutex mutex;
    static std::set<std::string> said;
    if (rank_ != 0) return;
    const std::lock_guard lock(mutex);
    if (!said.insert(why).second) return;
    std::fprintf(stderr, "twinrun_mpiio: %s: %s: plain MPI-IO is used\n", name_.c_str(), why.c_str());
}

void File::settle(const std::string& why) {
    usable_ = false;
    if (!why.empty()) say(why);
}

namespace {

// Why a rank cannot aggregate calls of a file. All ranks take the largest.
enum Problem : int { kNoProblem, kAskedNot, kBadHints, kBadFile };

}  // namespace

// Reads the hints, and opens a descriptor of this library's own. about: the same numbers on all
// ranks, unless they see other files or hints. problem: kBadHints and kBadFile come with an error.
Result<> File::open_own(const char* name, int amode, MPI_Info info, std::uint64_t (&about)[2], int& problem) {
    name_ = name;
    problem = kBadHints;
    TWR_TRY(hints_, hints_of(info));
    about[1] = hash_of(hints_) >> 1;
    problem = kAskedNot;
    if (!hints_.enable) return success();
    problem = kBadFile;
    if ((amode & MPI_MODE_SEQUENTIAL) != 0)
        return Error{ErrorCode::unsupported, "the file is opened with MPI_MODE_SEQUENTIAL"};
    const char* const path = without_prefix(name);
    if (std::strchr(path, ':') != nullptr) {
        return Error{ErrorCode::unsupported,
                     "the name has a colon, which MPI-IO may take for a kind of file system"};
    }
    const int flags = (amode & MPI_MODE_RDWR) != 0     ? O_RDWR
                      : (amode & MPI_MODE_WRONLY) != 0 ? O_WRONLY
                                                       : O_RDONLY;
    number_ = ::open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat found {};
    if (number_ < 0 || ::fstat(number_, &found) != 0) return aggregation::file_error(path, "open", errno);
    if (!S_ISREG(found.st_mode)) return Error{ErrorCode::unsupported, "it is not a regular file"};
    if (files_are_limited()) return Error{ErrorCode::unsupported, kFilesLimited};
    if (incoherent(number_))
        return Error{ErrorCode::unsupported, "its file system does not keep writers of a page apart"};
    about[0] = static_cast<std::uint64_t>(found.st_ino) >> 1;
    problem = kNoProblem;
    return success();
}

// The view of a file that was just opened: bytes.
Result<> File::view_bytes() {
    view_.usable = true;
    view_.whole = true;
    TWR_CHECK(view_.filetype.stream.append({0, 1, 1, 0}));
    view_.filetype.extent = 1;
    return success();
}

// A new pool, for this file and those that its ranks open later. False: MPI gives no communicator.
bool File::make_member(MPI_Comm comm, std::uint64_t settings, std::int64_t number) {
    if (member_) give_back(member_);
    member_ = std::make_shared<Member>();
    member_->settings = settings;
    member_->number = number;
    if (PMPI_Comm_dup(comm, &member_->comm) != MPI_SUCCESS) return false;
    PMPI_Comm_set_errhandler(member_->comm, MPI_ERRORS_RETURN);
    add(member_);
    return true;
}

std::shared_ptr<File> File::opened(MPI_File handle, MPI_Comm comm, const char* name, int amode,
                                   MPI_Info info) {
    const std::shared_ptr<File> file(new File);
    File& f = *file;
    f.handle_ = handle;
    f.amode_ = amode;
    PMPI_Comm_rank(comm, &f.rank_);
    PMPI_Comm_size(comm, &f.ranks_);
    f.changes_seen_ = changes().load();
    int problem = kNoProblem;
    std::string why;
    std::uint64_t about[2] = {0, 0};  // the file, the hints
    if (auto ready = caught([&] { return f.open_own(name, amode, info, about, problem); }); !ready) {
        if (problem < kBadHints) problem = kBadFile;
        why = ready.error().message;
    }
    if (!caught([&] { return f.view_bytes(); })) problem = kBadFile;
    // The pool that an earlier file of the same ranks has left.
    if (problem == kNoProblem) f.member_ = take(comm, about[1]);
    const std::int64_t number = f.member_ ? f.member_->number : 0;
    int provided = MPI_THREAD_SINGLE;
    PMPI_Query_thread(&provided);
    // The largest problem, whether all ranks have the same file, the same hints and the same
    // member, and whether a rank has no MPI_THREAD_MULTIPLE.
    std::int64_t all[9] = {problem,
                           static_cast<std::int64_t>(about[0]),
                           -static_cast<std::int64_t>(about[0]),
                           static_cast<std::int64_t>(about[1]),
                           -static_cast<std::int64_t>(about[1]),
                           number,
                           -number,
                           last_number(),
                           provided < MPI_THREAD_MULTIPLE ? 1 : 0};
    if (PMPI_Allreduce(MPI_IN_PLACE, all, 9, MPI_INT64_T, MPI_MAX, comm) != MPI_SUCCESS) all[0] = kBadFile;
    f.usable_ = all[0] == kNoProblem;
    f.threads_ = all[8] == 0;
    if (all[0] == kAskedNot) return file;
    if (all[0] != kNoProblem) {
        f.settle(why.empty() ? "another rank cannot aggregate it" : why);
    } else if (all[3] != -all[4]) {
        f.settle("the hints twinrun_* differ between ranks");
    } else if (all[1] != -all[2]) {
        f.settle("ranks see different files under its name");
    } else if (number == 0 || all[5] != -all[6]) {
        if (!f.make_member(comm, about[1], all[7] + 1)) return nullptr;
    }
    if (f.member_) f.comm_ = f.member_->comm;
    return file;
}

void File::lay_out_new(MPI_Comm comm, const char* name, int amode, MPI_Info info) noexcept {
    // With MPI_MODE_EXCL a file that is there would be an error.
    if (name == nullptr || (amode & MPI_MODE_CREATE) == 0 || (amode & MPI_MODE_EXCL) != 0) return;
    const auto done = caught([&]() -> Result<> {
        const std::string path = without_prefix(name);
        struct stat found {};
        int rank = -1;
        if (!on_lustre(aggregation::folder_of(path)) || path.find(':') != std::string::npos ||
            ::lstat(path.c_str(), &found) == 0 || PMPI_Comm_rank(comm, &rank) != MPI_SUCCESS || rank != 0)
            return success();
        TWR_TRY(const Hints hints, hints_of(info));
        const Striping striping = striping_of(hints, info);
        if (!striping.asked() || !hints.enable) return success();
        if (const auto made = create_striped(path, striping)) ::close(*made);
        return success();
    });
    static_cast<void>(done);
}

File::~File() {
    if (number_ >= 0) ::close(number_);
}

void File::close() {
    requests_.reset();
    if (reports() && rank_ == 0) {
        std::fprintf(
            stderr, "twinrun_mpiio: %s: %llu collective calls aggregated by %llu plans, %llu by MPI-IO\n",
            name_.c_str(), static_cast<unsigned long long>(aggregated_calls_.load()),
            static_cast<unsigned long long>(plans_), static_cast<unsigned long long>(plain_calls_.load()));
    }
    if (member_) give_back(std::exchange(member_, nullptr));
    // Otherwise later, in the destructor. After a file was cut to no bytes, ext4 writes its data to
    // storage when somebody first closes it. That holds up ranks that still write by MPI-IO itself.
    const bool deleted = (amode_ & MPI_MODE_DELETE_ON_CLOSE) != 0;
    if (number_ >= 0 && (deleted || !usable_)) ::close(std::exchange(number_, -1));
}

void File::set_view(MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype, const char* datarep) {
    native_ = ::strcasecmp(datarep, "native") == 0;
    view_.usable = false;
    view_.whole = false;
    const auto taken = caught([&]() -> Result<> {
        MPI_Count size = 0;
        TWR_MPI("MPI_Type_size_x", MPI_Type_size_x(etype, &size));
        // Also of a view that is not usable: file pointers count in etypes.
        view_.etype_bytes = static_cast<std::uint64_t>(std::max<MPI_Count>(size, 1));
        TWR_TRY(view_.filetype, aggregation::stream_of(filetype));
        view_.displacement = displacement;
        view_.usable = size > 0 && displacement >= 0 && view_.filetype.stream.bytes() != 0;
        const auto runs = view_.filetype.stream.runs();
        view_.whole = view_.usable && runs.size() == 1 && runs.front().count == 1 &&
                      runs.front().offset == 0 &&
                      static_cast<std::uint64_t>(view_.filetype.extent) == runs.front().width;
        return success();
    });
    static_cast<void>(taken);
}

bool File::allows(Mode mode) const {
    return (amode_ & (MPI_MODE_RDWR | (mode == Mode::write ? MPI_MODE_WRONLY : MPI_MODE_RDONLY))) != 0;
}

// ---- a collective call ----

Result<> File::start() {
    if (aggregate_ != nullptr) return success();
    if (member_->aggregate == nullptr) {
        int limited = files_are_limited() ? 1 : 0;
        TWR_MPI("MPI_Allreduce", PMPI_Allreduce(MPI_IN_PLACE, &limited, 1, MPI_INT, MPI_MAX, comm_));
        if (limited != 0) return Error{ErrorCode::unsupported, kFilesLimited};
        TWR_CHECK(aggregation::create(&member_->aggregate, comm_,
                                      [&]() -> Result<aggregation::Settings> { return hints_.settings; }));
    }
    aggregate_ = member_->aggregate;
    return success();
}

// The place of this rank's bytes in the view, in etypes.
Result<MPI_Offset> File::place(const Call& call, std::uint64_t bytes) {
    if (call.where == Where::at_offset) return MPI_Offset{call.offset};
    MPI_Offset at = 0;
    if (call.where == Where::own_pointer) {
        TWR_MPI("MPI_File_get_position", PMPI_File_get_position(handle_, &at));
        return MPI_Offset{at};
    }
    // Ranks follow each other from the shared pointer on.
    std::int64_t begin = -1;
    if (rank_ == 0 && PMPI_File_get_position_shared(handle_, &at) == MPI_SUCCESS) begin = at;
    auto own = static_cast<std::int64_t>(bytes / view_.etype_bytes);
    std::int64_t before = 0;
    std::int64_t total = own;
    TWR_MPI("MPI_Bcast", PMPI_Bcast(&begin, 1, MPI_INT64_T, 0, comm_));
    TWR_MPI("MPI_Exscan", PMPI_Exscan(&own, &before, 1, MPI_INT64_T, MPI_SUM, comm_));
    TWR_MPI("MPI_Allreduce", PMPI_Allreduce(MPI_IN_PLACE, &total, 1, MPI_INT64_T, MPI_SUM, comm_));
    if (rank_ == 0) before = 0;
    if (begin < 0)
        return Error{ErrorCode::unsupported, "MPI does not report where the shared file pointer is"};
    shared_begin_ = begin;
    shared_total_ = static_cast<std::uint64_t>(total);
    return static_cast<MPI_Offset>(begin + before);
}

Result<File::Layout> File::lay_out(const Call& call, MPI_Offset offset, Reason& reason) const {
    Layout layout;
    reason = kDatatype;
    TWR_TRY(const aggregation::TypeStream type, aggregation::stream_of(call.type));
    TWR_TRY(layout.memory, aggregation::stream_of_items(type, static_cast<std::uint64_t>(call.count)));
    layout.bytes = layout.memory.bytes();
    reason = kNone;
    if (layout.bytes == 0) return layout;
    if (on_device(call.buffer)) {
        reason = kDevice;
        return layout;
    }
    reason = kView;
    const auto begin = checked_multiply(static_cast<std::uint64_t>(offset), view_.etype_bytes);
    const auto end = begin ? checked_add(*begin, layout.bytes) : std::nullopt;
    if (!end) return Error{ErrorCode::invalid_argument, "the offset is too large"};
    TWR_TRY(layout.file,
            slice_of_tiles(view_.filetype.stream, view_.filetype.extent, view_.displacement, *begin, *end));
    TWR_CHECK(match(layout.file, layout.memory, 0, layout.parts));
    layout.begin = layout.parts.front().where.begin();
    layout.end = layout.parts.back().where.end();
    reason = layout.end > LastTransfer::kFarthest ? kFar : kNone;
    return layout;
}

Result<> File::declare(const Layout& layout, Mode mode, std::uint64_t zero) {
    LastTransfer& last = member_->last;
    auto sets = caught([&] { return last.renew(layout.parts, zero); });
    if (files_are_limited()) sets = Error{ErrorCode::unsupported, kFilesLimited};
    ++plans_;
    const bool reads = mode == Mode::read;
    TWR_CHECK(aggregate_->plan->declare(std::move(sets), 1, reads));
    last.declared(reads);
    return success();
}

Answer File::transfer(const Call& call) {
    const Answer answer = aggregate(call);
    ++(answer.fate == Fate::plain ? plain_calls_ : aggregated_calls_);
    return answer;
}

// By what is equal on all ranks: whether a call may be aggregated.
bool File::eligible(Mode mode) const {
    if (!allows(mode)) return false;
    if (!native_) {
        say("the view's data representation is not native");
        return false;
    }
    int atomic = 0;
    if (PMPI_File_get_atomicity(handle_, &atomic) != MPI_SUCCESS || atomic != 0) {
        say("the file is in atomic mode");
        return false;
    }
    return true;
}

// [collective] The answer if there is no aggregate for the call.
std::optional<Answer> File::unready() {
    if (!usable_) return plain();
    if (auto started = start(); !started) {
        settle(started.error().message);
        return plain();
    }
    if (aggregate_->team->broken()) return failed(aggregate_->team->why_broken());
    return std::nullopt;
}

// The bytes that this rank moves. Errors: arguments that MPI forbids.
Result<std::uint64_t> File::bytes_of(const Call& call) const {
    const auto refuse = [](const char* what) { return Error{ErrorCode::invalid_argument, what}; };
    if (call.count < 0) return refuse("count is negative");
    if (call.type == MPI_DATATYPE_NULL) return refuse("the datatype is MPI_DATATYPE_NULL");
    if (call.where == Where::at_offset && call.offset < 0) return refuse("the offset is negative");
    MPI_Count size = 0;
    TWR_MPI("MPI_Type_size_x", MPI_Type_size_x(call.type, &size));
    const auto all = checked_multiply(static_cast<std::uint64_t>(std::max<MPI_Count>(size, 0)),
                                      static_cast<std::uint64_t>(call.count));
    if (!all) return refuse("it has more than 2^64 bytes");
    if (view_.usable && *all % view_.etype_bytes != 0)
        return refuse("the data is not a whole number of the view's etypes");
    return *all;
}

// [collective]
File::OwnPart File::own_part(const Call& call) {
    OwnPart own;
    own.reason = view_.usable ? kNone : kView;
    const auto bytes = caught([&] { return bytes_of(call); });
    if (bytes) {
        own.bytes = *bytes;
    } else {
        own.checked = bytes.error();
    }
    const auto offset = place(call, own.bytes);
    if (offset) {
        own.offset = *offset;
    } else if (own.reason == kNone) {
        own.reason = kView;
    }
    if (!own.checked || own.reason != kNone) return own;
    auto laid = caught([&] { return lay_out(call, own.offset, own.reason); });
    if (laid) {
        own.layout = std::move(*laid);
    } else if (own.reason == kNone || laid.error().code == ErrorCode::out_of_memory) {
        own.reason = kNoMemory;
    }
    return own;
}

// What the ranks agree on.
void File::put_figures(const OwnPart& own, std::span<double> figures) const {
    figures[kReason] = own.reason;
    const bool has_data = own.reason == kNone && !own.layout.parts.empty();
    if (has_data) figures[kEnd] = static_cast<double>(own.layout.end);
    member_->last.put(has_data ? std::span<const ArrayPart>(own.layout.parts) : std::span<const ArrayPart>(),
                      figures.subspan(kOwnFigures));
}

// By one rank, for all: the file's size and its storage's traits, in outcome.payload.
Result<> File::look_at_storage(Outcome& outcome) {
    struct stat about {};
    if (::fstat(number_, &about) != 0) return aggregation::file_error(name_, "stat", errno);
    outcome.payload[0] = static_cast<std::uint64_t>(about.st_size);
    if (!traits_) {
        auto traits = caught([&] {
            return aggregation::storage_traits("/proc/self/fd/" + std::to_string(number_),
                                               hints_.settings.block_bytes);
        });
        if (!traits) return traits.error();
        traits_ = *traits;
    }
    outcome.payload[1] = traits_->block;
    outcome.payload[2] = traits_->direct.least_bytes;
    outcome.payload[3] = traits_->direct.alignment;
    // Less than this of each rank is one write of one rank, and a step less (write_for_all).
    constexpr std::uint64_t kTogether = std::uint64_t{32} << 10;
    const bool one_node = aggregate_->team->nodes() == 1;
    outcome.payload[4] = std::max(traits_->direct.least_alone, one_node ? kTogether : 0);
    return success();
}

const char* File::text_of(Reason reason) {
    switch (reason) {
        case kDevice: return "a buffer is memory of a GPU";
        case kDatatype: return "a datatype was made in a way that is not supported, or has too many pieces";
        case kView: return "the file view is not supported, or has too many pieces";
        case kFar: return "the data lies behind 2^50 bytes";
        default: return "memory is lacking";
    }
}

// [collective] The file ends before the last byte of a read: what lies behind its end is not read.
Result<> File::cut_at_end(Layout& layout, std::uint64_t file_bytes) {
    Team::Vote cut;
    cut.mine = caught([&]() -> Result<> {
        const std::uint64_t left = bytes_before(layout.file, static_cast<std::int64_t>(file_bytes));
        if (left == layout.bytes) return success();
        layout.bytes = left;
        layout.parts.clear();
        TWR_TRY(const Stream file, slice(layout.file, 0, left));
        TWR_TRY(const Stream memory, slice(layout.memory, 0, left));
        return match(file, memory, 0, layout.parts);
    });
    TWR_CHECK(aggregate_->team->agree(cut));
    return success();
}

Answer File::aggregate(const Call& call) {
    if (!usable_ || !eligible(call.mode)) return plain();
    if (ranks_ == 1) {
        if (auto done = move_stretch(call)) return std::move(*done);
    }
    OwnPart own;
    std::optional<Answer> alone;
    if (ranks_ == 1) {
        own = own_part(call);
        alone = move_alone(call, own);
    }
    if (!alone) {
        if (auto answer = unready()) return std::move(*answer);
        if (ranks_ != 1) own = own_part(call);
    }
    // Pointers move by what was asked for, also where the file ends before that (MPI 4.1, section
    // 14.4.1).
    const std::uint64_t asked = own.bytes;
    Answer answer = alone ? std::move(*alone) : move(call, std::move(own));
    if (answer.fate != Fate::moved) return answer;
    if (auto passed = pass_pointer(call, asked); !passed) return failed(passed.error());
    return answer;
}

namespace {

// The parts of a call, where they are one stretch of the file and of memory.
std::optional<aggregation::Piece> stretch_of(const std::vector<ArrayPart>& parts, void* buffer) {
    if (parts.size() != 1) return std::nullopt;
    const ArrayPart& part = parts.front();
    const bool dense =
        part.where.count == 1 ||
        (part.where.dense() && part.memory_stride == static_cast<std::int64_t>(part.where.width));
    if (!dense) return std::nullopt;
    return aggregation::Piece{part.where.begin(), static_cast<std::byte*>(buffer) + part.memory_offset,
                              part.where.bytes()};
}

}  // namespace

// Of a file that only this rank has opened: a call of the system, and nobody to agree with.
Answer File::move_piece(Mode mode, const aggregation::Piece& piece) const {
    std::uint64_t bytes = piece.count;
    const auto moved = caught([&]() -> Result<> {
        aggregation::Descriptor file;
        TWR_CHECK(file.adopt({number_, name_, 0}, mode));
        if (mode == Mode::write) return file.transfer(std::span(&piece, 1));
        TWR_TRY(bytes, file.read_to_end(piece));
        return success();
    });
    return moved ? Answer{Fate::moved, bytes, {}} : failed(moved.error());
}

// Where view and datatype have no holes, without a list of pieces. nullopt: it is not that, or it
// has an error, which the longer way finds.
std::optional<Answer> File::move_stretch(const Call& call) {
    if (!view_.whole || call.where == Where::shared_pointer || call.count <= 0 || on_device(call.buffer))
        return std::nullopt;
    const auto item = aggregation::dense_item(call.type);
    if (!item) return std::nullopt;
    const auto bytes = checked_multiply(*item, static_cast<std::uint64_t>(call.count));
    if (!bytes || *bytes % view_.etype_bytes != 0) return std::nullopt;
    const auto offset = place(call, *bytes);
    if (!offset || *offset < 0) return std::nullopt;
    const auto begin = checked_multiply(static_cast<std::uint64_t>(*offset), view_.etype_bytes);
    const auto from =
        begin ? checked_add(*begin, static_cast<std::uint64_t>(view_.displacement)) : std::nullopt;
    const auto end = from ? checked_add(*from, *bytes) : std::nullopt;
    if (!end || *end > LastTransfer::kFarthest) return std::nullopt;
    Answer answer = move_piece(call.mode, {*from, static_cast<std::byte*>(call.buffer), *bytes});
    if (answer.fate != Fate::moved) return answer;
    if (auto passed = pass_pointer(call, *bytes); !passed) return failed(passed.error());
    return answer;
}

std::optional<Answer> File::move_alone(const Call& call, const OwnPart& own) const {
    if (!own.checked || own.reason != kNone) return std::nullopt;
    if (own.layout.parts.empty()) return Answer{Fate::moved, 0, {}};
    const auto piece = stretch_of(own.layout.parts, call.buffer);
    if (!piece) return std::nullopt;
    return move_piece(call.mode, *piece);
}

// Reads this rank's bytes before the ranks agree, where they are one stretch and an aggregator
// would not read them at less cost. Returns how many there are. If all ranks have done so, the
// agreement is the end of the call. Otherwise all go the longer way, which reads them again.
//
// No rank waits for the others here. A rank that has changed a file by MPI-IO itself since the last
// agreement may have done so after others had read. It votes against, and all read again.
std::optional<std::uint64_t> File::read_ahead(const Call& call, const OwnPart& own) {
    if (call.mode != Mode::read || !own.checked || own.reason != kNone) return std::nullopt;
    if (own.layout.parts.empty()) return 0;
    if (ahead_pause_ != 0) return std::nullopt;
    const auto piece = stretch_of(own.layout.parts, call.buffer);
    if (!piece) return std::nullopt;
    if (!least_ahead_) {
        // The block is not asked for, which spares each rank a question to Lustre.
        constexpr std::uint64_t kAnyBlock = 4096;
        const auto traits = caught([&] {
            return aggregation::storage_traits("/proc/self/fd/" + std::to_string(number_), kAnyBlock);
        });
        least_ahead_ = traits ? traits->direct.least_alone : UINT64_MAX;
    }
    if (piece->count < *least_ahead_) return std::nullopt;
    // An error is met again on the longer way, which reports it to all ranks.
    const auto bytes = caught([&]() -> Result<std::uint64_t> {
        aggregation::Descriptor file;
        TWR_CHECK(file.adopt({number_, name_, 0}, call.mode));
        return file.read_to_end(*piece);
    });
    if (!bytes) return std::nullopt;
    return *bytes;
}

// By rank 0 in the agreement: where all ranks repeat the last write, and have deposited their
// bytes, it writes them, and the agreement is the end of the call. An error is one of all ranks.
Result<> File::write_for_all(const Call& call, std::optional<aggregation::Move>& ahead,
                             Outcome& outcome) const {
    const auto& all = outcome.figures.largest;
    const auto places = std::span<const double>(all).subspan(kOwnFigures);
    if (call.mode != Mode::write || all[kReason] != 0 || all[kUnready] != kDeposited ||
        !LastTransfer::has_data(places))
        return success();
    const aggregation::StorageTraits traits = traits_in(outcome);
    if (!(traits == aggregate_->plan->traits())) return success();
    const auto base = member_->last.base_after(places, false, step_of(traits));
    if (!base) return success();
    TWR_CHECK(ahead->store({number_, name_, *base}));
    outcome.payload[kWritten] = 1;
    return success();
}

// [collective]
Answer File::move(const Call& call, OwnPart own) {
    Team& team = *aggregate_->team;
    Layout& layout = own.layout;
    Team::Vote vote;
    vote.patient = !hints_.limited;
    vote.same = static_cast<std::uint64_t>(call.mode) * 8 + static_cast<std::uint64_t>(call.where) + 1;
    vote.differs = "collective calls of one file differ from those of rank 0";
    // First of all: what another thread changes from here on counts as before the next call.
    const std::uint64_t changes_now = changes().load();
    const auto have_read = read_ahead(call, own);
    const bool undisturbed = changes_now == changes_seen_ && !changes_later();
    changes_seen_ = changes_now;
    if (ahead_pause_ != 0) --ahead_pause_;
    vote.mine = std::move(own.checked);
    put_figures(own, vote.figures.largest);
    vote.figures.largest[kNotAhead] = have_read && undisturbed ? 0 : 1;
    vote.figures.sums[kHaveRead] = have_read.value_or(0) != 0 ? 1 : 0;
    // Where this rank repeats the last call, it is ready before the ranks agree. Where all are, one
    // agreement is enough.
    std::optional<aggregation::Move> ahead;
    const auto own_places = std::span<const double>(vote.figures.largest).subspan(kOwnFigures);
    const bool repeats = member_->last.has_plan() && !LastTransfer::changed(own_places);
    if (vote.mine && own.reason == kNone && repeats && !have_read) {
        ahead.emplace(*aggregate_, call.mode, call.buffer);
        if (!ahead->prepare()) ahead.reset();
    }
    vote.figures.largest[kUnready] = !ahead ? kNotPrepared : ahead->deposit() ? kDeposited : kPrepared;
    vote.on_root = [&](Outcome& outcome) -> Result<> {
        TWR_CHECK(look_at_storage(outcome));
        return write_for_all(call, ahead, outcome);
    };
    auto agreed = team.agree(vote);
    if (!agreed) return failed(agreed.error());

    // From here on all ranks decide alike.
    const auto& all = agreed->figures.largest;
    if (agreed->payload[kWritten] != 0) {
        const auto traits = traits_in(*agreed);
        member_->last.follow(std::span<const double>(all).subspan(kOwnFigures), false, step_of(traits));
        return Answer{Fate::moved, layout.bytes, {}};
    }
    if (all[kReason] == 0 && all[kNotAhead] == 0) {
        ahead_pauses_ = 0;
        return Answer{Fate::moved, *have_read, {}};
    }
    // Some have read in vain: calls with this pattern may follow.
    if (agreed->figures.sums[kHaveRead] != 0) {
        constexpr unsigned kLongestPause = 64;
        ahead_pauses_ = std::clamp(ahead_pauses_ * 2, 1U, kLongestPause);
        ahead_pause_ = ahead_pauses_;
    }
    if (const auto reason = static_cast<Reason>(all[kReason]); reason != kNone) {
        say(text_of(reason));
        return plain();
    }
    const auto places = std::span<const double>(all).subspan(kOwnFigures);
    if (!LastTransfer::has_data(places)) return Answer{Fate::moved, 0, {}};
    const std::uint64_t file_bytes = agreed->payload[0];
    const aggregation::StorageTraits traits = traits_in(*agreed);
    if (!(traits == aggregate_->plan->traits())) {
        member_->last.forget();
        if (auto adapted = aggregate_->plan->adapt(traits); !adapted) return failed(adapted.error());
    }
    const bool cut = call.mode == Mode::read && static_cast<std::uint64_t>(all[kEnd]) > file_bytes;
    if (cut) {
        if (auto done = cut_at_end(layout, file_bytes); !done) return failed(done.error());
    }
    const bool serves = !cut && member_->last.follow(places, call.mode == Mode::read, step_of(traits));
    if (!serves || all[kUnready] > kPrepared) ahead.reset();
    if (!serves) {
        auto declared = declare(layout, call.mode, LastTransfer::zero(places, traits.block));
        if (team.broken()) return failed(team.why_broken());
        if (!declared) {
            // Most often bytes that two ranks write, which MPI allows.
            say("a call cannot be planned (" + declared.error().message + ")");
            return plain();
        }
    }
    const aggregation::OpenFile file{number_, name_, member_->last.base()};
    auto moved = ahead ? ahead->run(file) : aggregation::move(*aggregate_, call.mode, file, call.buffer);
    if (!moved) return failed(moved.error());
    return Answer{Fate::moved, layout.bytes, {}};
}

void File::abandon(const Error& error) noexcept {
    if (aggregate_ != nullptr) aggregate_->team->abandon(error);
}

Result<> File::pass_pointer(const Call& call, std::uint64_t bytes) {
    if (call.where == Where::own_pointer) {
        MPI_Offset at = 0;
        TWR_MPI("MPI_File_get_position", PMPI_File_get_position(handle_, &at));
        at += static_cast<MPI_Offset>(bytes / view_.etype_bytes);
        TWR_MPI("MPI_File_seek", PMPI_File_seek(handle_, at, MPI_SEEK_SET));
    } else if (call.where == Where::shared_pointer) {
        TWR_MPI("MPI_File_seek_shared",
                PMPI_File_seek_shared(handle_, shared_begin_ + static_cast<MPI_Offset>(shared_total_),
                                      MPI_SEEK_SET));
    }
    return success();
}

void note_change(Change change) noexcept {
    if (change == Change::ends_later) changes_later().store(true);
    changes().fetch_add(1, std::memory_order_relaxed);
}

// ---- the files that are open ----

namespace {

struct Table {
    std::mutex mutex;
    std::map<MPI_File, std::shared_ptr<File>> files;
};
// Never destroyed: programs may close files when they exit.
Table& table() {
    static Table* const all = new Table;
    return *all;
}

}  // namespace

void remember(MPI_File handle, std::shared_ptr<File> file) {
    const std::lock_guard lock(table().mutex);
    table().files.insert_or_assign(handle, std::move(file));
}

std::shared_ptr<File> find(MPI_File handle) {
    const std::lock_guard lock(table().mutex);
    const auto at = table().files.find(handle);
    return at == table().files.end() ? nullptr : at->second;
}

void forget(MPI_File handle) {
    const std::lock_guard lock(table().mutex);
    table().files.erase(handle);
}

}  // namespace twinrun::mpiio
