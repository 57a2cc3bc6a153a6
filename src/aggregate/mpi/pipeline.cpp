#include "aggregate/mpi/pipeline.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "aggregate/mpi/descriptor.hpp"
#include "base/caught.hpp"

namespace twinrun::aggregation {

namespace {

// Direct stretches are written in steps; between steps a rank serves its partitions. Steps of
// stretches that must be packed first fit into the second-level cache.
constexpr std::uint64_t kDirectStep = std::uint64_t{4} << 20;
constexpr std::uint64_t kPackedStep = std::uint64_t{512} << 10;
// Shorter pieces of memory are packed, because a piece costs the system more time than copying this
// many bytes.
constexpr std::uint64_t kLeastPiece = 2048;

// Holes up to this long are read through: a call costs a disk or a network as much time as this
// many bytes, and a page cache less.
constexpr std::uint64_t kReadThrough = std::uint64_t{64} << 10;

constexpr std::uint32_t kReady = 0;  // message: ranks may work on a window
constexpr std::uint32_t kDone = 1;   // message: a rank has finished with a window
constexpr int kTag = 1;

// Whether a direct stretch of this set is packed.
bool packed_first(const RankSet& set) {
    return set.where.count > 1 && std::all_of(set.fields.begin(), set.fields.end(),
                                              [](const Field& field) { return field.bytes < kLeastPiece; });
}

}  // namespace

struct Pipeline::Message {
    std::uint32_t kind = 0;
    std::uint32_t partition = 0;
    std::uint64_t window = 0;
};

struct Pipeline::Sent {
    Message message;
    MPI_Request request = MPI_REQUEST_NULL;
};

struct Pipeline::Role {
    std::uint32_t partition = 0;
    const Partition* of = nullptr;
    bool aggregator = false;
    bool remote = false;  // the aggregator is on another node
    std::uint64_t windows = 0;
    // As a member: the windows with data of this rank.
    std::vector<std::uint64_t> own;
    std::size_t at = 0;
    std::uint64_t ready = 0;  // ready windows, as a remote aggregator reported
    // As the aggregator.
    struct Meeting {
        std::uint32_t here = 0;       // ranks of this node
        std::vector<int> all;         // of the team
        std::uint32_t elsewhere = 0;  // ranks of other nodes that have not finished
    };
    std::vector<Meeting> meetings;
    std::uint64_t opened = 0;   // windows opened for ranks
    std::uint64_t met = 0;      // windows that all ranks have finished with
    std::uint64_t started = 0;  // windows whose jobs were started
    std::uint64_t ended = 0;    // windows whose jobs have ended
    std::vector<std::uint64_t> jobs;

    [[nodiscard]] bool member_done() const { return at == own.size(); }
    [[nodiscard]] bool aggregator_done() const { return !aggregator || (ended == windows && met == windows); }
};

Pipeline::Pipeline(Team& team, const Settings& settings, const FileGroup& group, const Plan& plan, Mode mode,
                   void* const* data)
    : team_(team),
      settings_(settings),
      group_(group),
      plan_(plan),
      mode_(mode),
      data_(data),
      buffers_(static_cast<std::uint64_t>(settings.buffers)) {}

Pipeline::~Pipeline() {
    if (team_.broken()) {
        static_cast<void>(sent_.release());
        return;
    }
    for (std::size_t i = taken_; i < sent_count_; ++i) {
        if (sent_[i].request != MPI_REQUEST_NULL) MPI_Wait(&sent_[i].request, MPI_STATUS_IGNORE);
    }
}

void Pipeline::fail(Error error) {
    if (!error_) error_ = std::move(error);
}

template <class Body>
bool Pipeline::attempt(Body&& body) {
    auto done = caught([&]() -> Result<> {
        body();
        return success();
    });
    if (done) return true;
    fail(std::move(done).error());
    return false;
}

Storage* Pipeline::storage() {
    if (!tried_) {
        tried_ = true;
        const auto on_end = [this] { team_.notify_self(); };
        // A new file was made by us and is not a link. An existing file that is updated or read may
        // be a link.
        auto opened = files_ != nullptr ? open_sub_files(*files_, on_end)
                      : file_ != nullptr
                          ? storage_of(settings_.backend, *file_, mode_, on_end)
                          : open_storage(settings_.backend, path_,
                                         {mode_, settings_.sync, !writing() || settings_.update}, on_end);
        if (opened) {
            storage_ = std::move(*opened);
        } else {
            fail(opened.error());
        }
    }
    return storage_.get();
}

// The parts of a range with bytes that this rank has and does not write itself. They may include
// holes of its sets.
std::vector<Range> Pipeline::own_parts(Range range) const {
    std::vector<Range> parts;
    for (const Range& direct : plan_.direct()) {
        if (direct.end <= range.begin) continue;
        if (direct.begin >= range.end) break;
        if (direct.begin > range.begin) parts.push_back({range.begin, direct.begin});
        range.begin = direct.end;
        if (range.begin >= range.end) return parts;
    }
    parts.push_back(range);
    return parts;
}

Result<> Pipeline::prepare() {
    const auto me = static_cast<std::uint32_t>(group_.rank);
    role_of_.assign(plan_.partitions().size(), -1);
    std::uint64_t most = 0;
    for (std::uint32_t p = 0; p < plan_.partitions().size(); ++p) {
        const Partition& partition = plan_.partitions()[p];
        if (!partition.plan) continue;
        Role role;
        role.partition = p;
        role.of = &partition;
        role.windows = partition.plan->windows().size();
        role.aggregator = partition.aggregator == me;
        role.remote = !team_.on_this_node(group_.team_rank[partition.aggregator]);
        role.ready = writing() ? std::min(buffers_, role.windows) : 0;
        for (std::uint64_t w = 0; w < role.windows; ++w) {
            const Window& window = partition.plan->windows()[w];
            std::uint64_t bytes = 0;
            for (const Range& part : own_parts(window.range)) {
                for (const RankSet& set : sets())
                    bytes += bytes_in(set.where, part);
            }
            if (bytes == 0) continue;
            role.own.push_back(w);
            if (role.remote) most = std::max(most, bytes);
        }
        remote_ = remote_ || (role.remote && !role.own.empty());
        if (role.aggregator) {
            for (const Window& window : partition.plan->windows()) {
                Role::Meeting meeting;
                for (const std::uint32_t rank : partition.plan->ranks_of(window)) {
                    const int other = group_.team_rank[rank];
                    meeting.all.push_back(other);
                    if (team_.on_this_node(other)) {
                        ++meeting.here;
                    } else {
                        ++meeting.elsewhere;
                        remote_ = true;
                    }
                }
                role.meetings.push_back(std::move(meeting));
            }
            work_.windows += static_cast<double>(role.windows);
        }
        role_of_[p] = static_cast<int>(roles_.size());
        roles_.push_back(std::move(role));
    }
    if (std::any_of(sets().begin(), sets().end(), packed_first)) {
        for (const Range& direct : plan_.direct())
            most = std::max(most, std::min(direct.bytes(), kPackedStep));
    }
    // A thread for one window costs more than it gains.
    one_job_ = settings_.backend == Backend::posix && work_.windows == 1 && plan_.direct().empty();
    scratch_.resize(most);
    std::size_t messages = 0;
    for (Role& role : roles_) {
        if (role.remote) messages += role.own.size();
        for (const Role::Meeting& meeting : role.meetings)
            messages += meeting.elsewhere;
        if (role.aggregator) role.jobs.reserve(role.windows);
    }
    sent_ = std::make_unique<Sent[]>(messages);
    for (Role& role : roles_) {
        if (!role.aggregator) continue;
        plan_.duty(*role.of).ready.store(0);
        if (!writing()) continue;
        for (std::uint64_t w = 0; w < std::min(buffers_, role.windows); ++w)
            open_window(role, w);
    }
    return success();
}

// ---- aggregator ----

void Pipeline::open_window(Role& role, std::uint64_t w) {
    Duty& duty = plan_.duty(*role.of);
    const Window& window = role.of->plan->windows()[w];
    Role::Meeting& meeting = role.meetings[w];
    if (writing() && !settings_.update && window.bytes != window.data.bytes()) {
        // Holes of the file are zeros. Direct stretches in the buffer are not written.
        std::memset(plan_.buffer(*role.of, w) + (window.data.begin - window.range.begin), 0,
                    window.data.bytes());
    }
    duty.left[w % buffers_].store(meeting.here);
    role.opened = w + 1;
    duty.ready.store(role.opened);
    if (plan_.window() != MPI_WIN_NULL && meeting.elsewhere != 0) MPI_Win_sync(plan_.window());
    const bool announce = !writing() || w >= buffers_;  // the first buffers are free from the start
    for (const int rank : meeting.all) {
        if (team_.on_this_node(rank)) {
            if (announce && rank != team_.rank()) team_.notify(rank);
        } else if (announce) {
            send(rank, kReady, role.partition, w);
        }
    }
}

bool Pipeline::window_done(const Role& role, std::uint64_t w) const {
    return role.meetings[w].elsewhere == 0 && plan_.duty(*role.of).left[w % buffers_].load() == 0;
}

// What storage writes from a window's buffer, or reads into it.
std::vector<Piece> Pipeline::pieces_of(const Role& role, std::uint64_t w) const {
    const PartitionPlan& plan = *role.of->plan;
    const Window& window = plan.windows()[w];
    std::byte* const buffer = plan_.buffer(*role.of, w);
    std::vector<Piece> pieces;
    const std::vector<Range> runs = writing() ? plan.runs_of(window, settings_.update, plan_.traits().block)
                                              : plan.sieve_of(window, kReadThrough);
    pieces.reserve(runs.size());
    for (const Range& run : runs)
        pieces.push_back({run.begin, buffer + (run.begin - window.range.begin), run.bytes()});
    return pieces;
}

void Pipeline::start_job(Role& role, std::uint64_t w) {
    std::uint64_t job = 0;  // without storage the others go on, and all reach the end
    attempt([&] {
        Storage* const storage = this->storage();
        if (storage == nullptr) return;
        if (writing() && plan_.window() != MPI_WIN_NULL) MPI_Win_sync(plan_.window());
        std::vector<Piece> pieces = pieces_of(role, w);
        if (one_job_) {
            const auto begin = Clock::now();
            if (auto done = storage->transfer(pieces); !done) fail(std::move(done).error());
            work_.storage_seconds += seconds_since(begin);
            return;
        }
        job = storage->start(std::move(pieces));
    });
    role.jobs.push_back(job);
}

bool Pipeline::step_aggregator(Role& role) {
    bool any = false;
    const std::uint64_t jobs = storage_ ? storage_->ended() : 0;
    const auto job_ended = [&] { return role.ended < role.started && role.jobs[role.ended] <= jobs; };
    if (writing()) {
        while (job_ended()) {
            ++role.ended;
            any = true;
        }
        while (role.met < role.opened && window_done(role, role.met)) {
            start_job(role, role.met++);
            ++role.started;
            any = true;
        }
        while (role.opened < role.windows && role.opened < role.ended + buffers_) {
            open_window(role, role.opened);
            any = true;
        }
    } else {
        while (role.met < role.opened && window_done(role, role.met)) {
            ++role.met;
            any = true;
        }
        while (role.started < role.windows && role.started < role.met + buffers_) {
            start_job(role, role.started++);
            any = true;
        }
        while (job_ended()) {
            open_window(role, role.ended++);
            any = true;
        }
    }
    return any;
}

// ---- member ----

void Pipeline::move_local(const Role& role, std::uint64_t w) {
    const Window& window = role.of->plan->windows()[w];
    std::byte* const buffer = plan_.buffer(*role.of, w);
    for (const Range& part : own_parts(window.range)) {
        for (const RankSet& set : sets()) {
            const std::uint64_t bytes = bytes_in(set.where, part);
            if (bytes == 0) continue;
            std::byte* const place = buffer + (part.begin - window.range.begin);
            if (writing()) {
                gather_range(set, data_, part, place);
            } else {
                scatter_range(set, data_, part, place);
            }
            work_.shared_bytes += static_cast<double>(bytes);
        }
    }
}

// Puts bytes into an aggregator's buffer, or gets them: `count` blocks of `width` bytes, `stride`
// apart there and dense here. at: of the first block, in the aggregator's part of the MPI window.
void Pipeline::transfer(int target, MPI_Aint at, std::byte* bytes, std::uint64_t width, std::uint64_t count,
                        std::uint64_t stride) {
    const auto move = [&](std::byte* here, int length, MPI_Aint there, int items, MPI_Datatype type) {
        const int code = writing()
                             ? MPI_Put(here, length, MPI_BYTE, target, there, items, type, plan_.window())
                             : MPI_Get(here, length, MPI_BYTE, target, there, items, type, plan_.window());
        if (code != MPI_SUCCESS) fail(mpi_error("MPI_Put or MPI_Get", code));
    };
    const std::uint64_t limit = most_a_call();
    if (width > limit) {
        for (std::uint64_t i = 0; i < count; ++i) {
            for (std::uint64_t done = 0; done < width; done += limit) {
                const int length = static_cast<int>(std::min(limit, width - done));
                move(bytes + i * width + done, length, at + static_cast<MPI_Aint>(i * stride + done), length,
                     MPI_BYTE);
            }
        }
        return;
    }
    const std::uint64_t most = limit / width;
    for (std::uint64_t done = 0; done < count;) {
        const std::uint64_t blocks = std::min(most, count - done);
        const int length = static_cast<int>(blocks * width);
        MPI_Datatype type = MPI_BYTE;
        int items = length;
        if (width != stride && blocks > 1) {
            MPI_Type_create_hvector(static_cast<int>(blocks), static_cast<int>(width),
                                    static_cast<MPI_Aint>(stride), MPI_BYTE, &type);
            MPI_Type_commit(&type);
            items = 1;
        }
        move(bytes + done * width, length, at + static_cast<MPI_Aint>(done * stride), items, type);
        if (type != MPI_BYTE) MPI_Type_free(&type);
        done += blocks;
    }
}

// The part of a set that lies in a window, and the place of its bytes in the scratch memory.
struct Pipeline::PackedPart {
    const RankSet* set;
    SetPart part;
    std::byte* at;

    void unpack(void* const* data) const {
        std::byte* from = at;
        for (const SetPart::Cut* cut : {&part.head, &part.tail}) {
            if (cut->bytes() == 0) continue;
            scatter_cut(*set, data, *cut, from);
            from += cut->bytes();
        }
        if (part.first < part.last) scatter_items(*set, data, part.first, part.last, from, set->where.width);
    }
};

// Writing: packs, puts, and waits until all is in the aggregator's buffer. Reading: gets, waits,
// and unpacks.
void Pipeline::move_remote(const Role& role, std::uint64_t w) {
    const Window& window = role.of->plan->windows()[w];
    const MPI_Aint base = plan_.displacement(*role.of, w);
    const int target = role.of->target;
    const auto place = [&](std::uint64_t offset) {
        return base + static_cast<MPI_Aint>(offset - window.range.begin);
    };
    std::vector<PackedPart> packed;
    std::vector<Range> ranges;
    std::byte* at = scratch_.data();
    // Before the first transfer: none may be under way when there is an error.
    const bool ready = attempt([&] {
        ranges = own_parts(window.range);
        packed.reserve(ranges.size() * sets().size());
    });
    if (!ready) return;
    for (const Range& range : ranges) {
        for (const RankSet& set : sets()) {
            const StridedSet& where = set.where;
            const SetPart part = part_of(where, range);
            packed.push_back({&set, part, at});
            for (const SetPart::Cut* cut : {&part.head, &part.tail}) {
                if (cut->bytes() == 0) continue;
                if (writing()) gather_cut(set, data_, *cut, at);
                transfer(target, place(where.offset + cut->item * where.stride + cut->begin), at,
                         cut->bytes(), 1, cut->bytes());
                at += cut->bytes();
            }
            if (part.first < part.last) {
                if (writing()) gather_items(set, data_, part.first, part.last, at, where.width);
                transfer(target, place(where.offset + part.first * where.stride), at, where.width,
                         part.last - part.first, where.stride);
                at += (part.last - part.first) * where.width;
            }
        }
    }
    {
        const Watchdog::Guard guard(team_.watchdog());
        if (const int code = MPI_Win_flush(target, plan_.window()); code != MPI_SUCCESS)
            fail(mpi_error("MPI_Win_flush", code));
    }
    if (!writing()) {
        for (const PackedPart& part : packed)
            part.unpack(data_);
    }
    work_.remote_bytes += static_cast<double>(at - scratch_.data());
}

bool Pipeline::step_member(Role& role) {
    bool any = false;
    while (!role.member_done()) {
        const std::uint64_t w = role.own[role.at];
        if ((role.remote ? role.ready : plan_.duty(*role.of).ready.load()) <= w) break;
        const auto begin = Clock::now();
        const int aggregator = group_.team_rank[role.of->aggregator];
        if (role.remote) {
            move_remote(role, w);
            send(aggregator, kDone, role.partition, w);
        } else {
            attempt([&] { move_local(role, w); });
            if (plan_.duty(*role.of).left[w % buffers_].fetch_sub(1) == 1) team_.notify(aggregator);
        }
        work_.gather_seconds += seconds_since(begin);
        team_.progress();
        ++role.at;
        any = true;
    }
    return any;
}

// ---- direct ----

bool Pipeline::step_direct() {
    if (direct_at_ == plan_.direct().size()) return false;
    const Range& range = plan_.direct()[direct_at_];
    const auto begin = Clock::now();
    if (!attempt([&] { move_direct({range.begin + direct_done_, range.end}); })) direct_done_ = range.bytes();
    if (direct_done_ == range.bytes()) {
        ++direct_at_;
        direct_done_ = 0;
    }
    work_.direct_seconds += seconds_since(begin);
    team_.progress();
    return true;
}

// One step of a range: the part from its begin that one transfer moves. Memory in the file's order
// is transferred in place; small pieces are packed in the scratch memory first.
void Pipeline::move_direct(Range range) {
    struct Packed {
        const RankSet* set;
        Range range;
        std::byte* at;
    };
    std::vector<Packed> packed;
    std::vector<Piece> pieces;
    constexpr std::size_t kMostPieces = 256;
    std::uint64_t at = range.begin;
    std::uint64_t used = 0;
    while (at < range.end && pieces.size() < kMostPieces && at - range.begin < kDirectStep) {
        // The last set that begins before this byte and has it. Interleaved sets without this byte
        // may begin later.
        auto set = std::partition_point(sets().begin(), sets().end(),
                                        [&](const RankSet& other) { return other.where.offset <= at; });
        do {
            --set;
        } while (bytes_in(set->where, {at, at + 1}) == 0);
        const std::uint64_t end = std::min(range.end, set->where.end());
        if (packed_first(*set)) {
            const std::uint64_t length = std::min(end - at, scratch_.size() - used);
            if (length == 0) break;
            std::byte* const place = scratch_.data() + used;
            if (writing()) gather_range(*set, data_, {at, at + length}, place);
            packed.push_back({&*set, {at, at + length}, place});
            pieces.push_back({at, place, length});
            used += length;
            at += length;
            continue;
        }
        const MemoryRun run = memory_run(*set, at);
        const std::uint64_t length = std::min({run.bytes, end - at, range.begin + kDirectStep - at});
        pieces.push_back({at, static_cast<std::byte*>(data_[run.variable]) + run.offset, length});
        at += length;
    }
    Storage* const file = error_ ? nullptr : storage();
    if (file != nullptr) {
        if (auto done = file->transfer(pieces); !done) {
            fail(std::move(done).error());
        } else if (!writing()) {
            for (const Packed& part : packed)
                scatter_range(*part.set, data_, part.range, part.at);
        }
    }
    // After an error the rest is not tried.
    const std::uint64_t moved = error_ ? range.bytes() : at - range.begin;
    direct_done_ += moved;
    work_.direct_bytes += static_cast<double>(moved);
}

// ---- one rank writes for all ----

bool Pipeline::deposit() {
    // More would rather be written by several ranks; and it is copied in vain where a rank cannot.
    constexpr std::uint64_t kMostDeposit = std::uint64_t{1} << 20;
    const auto& partitions = plan_.partitions();
    if (!writing() || !settings_.update || settings_.backend != Backend::posix || team_.nodes() != 1 ||
        partitions.size() != 1 || !plan_.direct().empty())
        return false;
    if (!partitions.front().plan) return !team_.leader() && sets().empty();
    const auto& windows = partitions.front().plan->windows();
    if (windows.size() != 1 || windows.front().range.bytes() > kMostDeposit) return false;
    return attempt([&] {
        for (const std::uint64_t w : roles_.front().own)
            move_local(roles_.front(), w);
    });
}

Result<> Pipeline::store() {
    Storage* const file = storage();
    if (file == nullptr) return *error_;
    TWR_CHECK(file->transfer(pieces_of(roles_.front(), 0)));
    return file->close();
}

// ---- messages ----

void Pipeline::send(int rank, std::uint32_t kind, std::uint32_t partition, std::uint64_t window) {
    Sent& sent = sent_[sent_count_++];
    sent.message = {kind, partition, window};
    const int code =
        MPI_Isend(&sent.message, sizeof sent.message, MPI_BYTE, rank, kTag, team_.comm(), &sent.request);
    if (code != MPI_SUCCESS) fail(mpi_error("MPI_Isend", code));
}

bool Pipeline::receive() {
    bool any = false;
    while (true) {
        int flag = 0;
        MPI_Status status;
        if (MPI_Iprobe(MPI_ANY_SOURCE, kTag, team_.comm(), &flag, &status) != MPI_SUCCESS || flag == 0) break;
        Message message;
        const int code = MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, kTag, team_.comm(),
                                  MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            fail(mpi_error("MPI_Recv", code));
            break;
        }
        Role& role = roles_[static_cast<std::size_t>(role_of_[message.partition])];
        if (message.kind == kReady) {
            role.ready = message.window + 1;
        } else {
            --role.meetings[message.window].elsewhere;
        }
        team_.progress();
        any = true;
    }
    while (taken_ < sent_count_) {
        int flag = 0;
        if (MPI_Test(&sent_[taken_].request, &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS || flag == 0) break;
        ++taken_;
    }
    return any;
}

// ---- the whole transfer ----

bool Pipeline::step() {
    bool any = false;
    if (remote_) any = receive();
    for (Role& role : roles_) {
        if (role.aggregator) any = step_aggregator(role) || any;
    }
    for (Role& role : roles_)
        any = step_member(role) || any;
    // Direct stretches come last, because no other rank waits for them.
    return any || step_direct();
}

Result<> Pipeline::run(const std::string& path) {
    try {
        path_ = path;
        return run_all();
    } catch (...) {
        // This rank cannot go on, and no rank waits for it any more.
        Error error = caught_error();
        team_.abandon(error);
        return error;
    }
}

Result<> Pipeline::run_all() {
    const auto done = [&] {
        if (direct_at_ != plan_.direct().size() || taken_ != sent_count_) return false;
        return std::all_of(roles_.begin(), roles_.end(),
                           [](const Role& role) { return role.member_done() && role.aggregator_done(); });
    };
    while (true) {
        while (step()) {
        }
        if (done()) break;
        const bool polls = remote_ || (storage_ && storage_->polls());
        const auto begin = Clock::now();
        double busy = 0;
        const bool aggregates = std::any_of(roles_.begin(), roles_.end(), [](const Role& role) {
            return role.aggregator && !role.aggregator_done();
        });
        const auto patience = aggregates ? Team::Patience::plain : Team::Patience::more;
        TWR_CHECK(team_.wait(
            [&] {
                const auto now = Clock::now();
                if (!step()) return done();
                busy = seconds_since(now);
                return true;
            },
            polls,
            [&] {
                for (const Role& role : roles_) {
                    if (!role.aggregator_done())
                        return "the ranks with data in partition " + std::to_string(role.partition);
                }
                for (const Role& role : roles_) {
                    if (!role.member_done())
                        return "rank " + std::to_string(group_.team_rank[role.of->aggregator]) +
                               ", an aggregator";
                }
                return std::string("messages to be taken");
            },
            patience));
        work_.wait_seconds += seconds_since(begin) - busy;
    }
    if (storage_) {
        work_.storage_seconds += storage_->seconds();
        if (auto error = storage_->error()) fail(std::move(*error));
    }
    if (error_) return *error_;
    return success();
}

Result<> Pipeline::sync() {
    if (!storage_) return success();
    return storage_->sync();
}

Result<> Pipeline::close() {
    if (!storage_) return success();
    return storage_->close();
}

}  // namespace twinrun::aggregation
