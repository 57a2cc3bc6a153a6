#include "aggregate/mpiio/file.hpp"

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

#include "aggregate/mpi/target.hpp"
#include "aggregate/mpiio/requests.hpp"
#include "base/caught.hpp"

namespace twinrun::mpiio {

namespace {

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

// Open MPI makes files for the memory that ranks of a node share, of 4 MB and more. Where it may
// not, it fails on one rank, and the others wait for ever.
bool File::files_are_limited() {
#ifdef OPEN_MPI
    constexpr rlim_t kEnough = rlim_t{16} << 20;
    rlimit limit{};
    return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kEnough;
#else
    return false;
#endif
}

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
    f.changes_seen_ = changes_noted();
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
