// Writes in the background: this rank's bytes are copied, and a thread writes them, one step after
// the other, by the same code as a write that the caller waits for.
//
// The thread and the caller never use the team at a time: the caller first waits for the thread
// (settle). So ranks meet in the thread's agreements, in the order of the steps.
#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "aggregate/mpi/transfer.hpp"
#include "base/caught.hpp"

#include "base/start_thread.hpp"

namespace twinrun::aggregation {

namespace {

// Steps of a rank that are under way at a time: one is written, and one waits for that.
constexpr std::size_t kSteps = 2;

}  // namespace

class Background {
   public:
    explicit Background(twr_aggregate& a) : a_(a) {}
    ~Background() { stop(); }
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    // [collective] Before the first step of a declaration: who writes, and places in staging
    // memory.
    Result<> suit(const char* path, Result<> mine);
    [[nodiscard]] bool suits() const { return declarations_ == a_.declarations; }
    [[nodiscard]] bool by_thread() const { return figures_.thread; }

    Result<> begin(const char* path, const void* const* data);
    // In the caller: counts a write that it made itself, and keeps its error.
    Result<> wrote(Result<> done);
    void settle();
    Result<> wait();
    [[nodiscard]] bool idle();
    [[nodiscard]] const BackgroundFigures& figures() const { return figures_; }

   private:
    // The bytes of one step.
    struct Step {
        std::string path;
        Result<> mine = success();  // an error of this rank, for the others
        std::vector<std::byte> bytes;
    };

    void stop();
    void work();
    Result<> write(const Step& step);
    void wait_until_fewer(std::size_t steps, std::unique_lock<std::mutex>& lock);
    void keep(Result<> done);

    twr_aggregate& a_;
    std::uint64_t declarations_ = 0;  // that the next two are of; 0: none
    std::vector<RankSet> sets_;       // in staging memory
    std::uint64_t bytes_ = 0;
    BackgroundFigures figures_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Step> steps_;  // the first is being written
    std::vector<std::vector<std::byte>> free_;
    std::optional<Error> error_;
    bool over_ = false;
    std::thread thread_;
};

Result<> Background::suit(const char* path, Result<> mine) {
    declarations_ = 0;
    Team& team = *a_.team;
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    Team::Vote vote;
    vote.differs = "the path differs from that of rank 0";
    vote.mine = std::move(mine);
    vote.figures.largest[0] = provided >= MPI_THREAD_MULTIPLE ? 0 : 1;
    TWR_TRY(const Outcome outcome, team.agree(vote));
    const bool multiple = outcome.figures.largest[0] == 0;
    figures_.thread = multiple || (team.nodes() == 1 && a_.settings.backend != Backend::mpiio);
    Result<> staged = caught([&]() -> Result<> {
        sets_.clear();
        bytes_ = 0;
        // One item behind the other, as in the file.
        for (const RankSet& set : a_.plan->sets()) {
            const std::uint64_t width = set.where.width;
            const auto stride = static_cast<std::int64_t>(width);
            sets_.push_back({set.where, {{0, 0, width, stride, static_cast<std::int64_t>(bytes_)}}});
            bytes_ += set.where.bytes();
        }
        free_.clear();
        // Here, where its failure is one of all ranks.
        if (figures_.thread && !thread_.joinable()) thread_ = start_thread([this] { work(); });
        return success();
    });
    // What the thread cannot do without calls of MPI.
    TWR_CHECK(suit_storage(a_, path, std::move(staged)));
    declarations_ = a_.declarations;
    return success();
}

// Waits until fewer steps than this are under way.
void Background::wait_until_fewer(std::size_t steps, std::unique_lock<std::mutex>& lock) {
    const auto begin = Clock::now();
    changed_.wait(lock, [&] { return steps_.size() < steps; });
    figures_.wait_seconds += seconds_since(begin);
}

Result<> Background::begin(const char* path, const void* const* data) {
    Step step;
    {
        std::unique_lock lock(mutex_);
        wait_until_fewer(kSteps, lock);
        if (!free_.empty()) {
            step.bytes = std::move(free_.back());
            free_.pop_back();
        }
    }
    step.mine = caught([&]() -> Result<> {
        TWR_CHECK(check_write(a_, path, data));
        step.path = path;
        step.bytes.resize(bytes_);
        return success();
    });
    const auto start = Clock::now();
    if (step.mine) {
        for (std::size_t i = 0; i < sets_.size(); ++i) {
            const RankSet& set = a_.plan->sets()[i];
            gather_items(set, data, 0, set.where.count,
                         step.bytes.data() + sets_[i].fields.front().memory_offset, set.where.width);
        }
    }
    figures_.copy_seconds += seconds_since(start);
    ++figures_.writes;
    Result<> mine = step.mine;
    const std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
    figures_.staged_bytes = std::max(figures_.staged_bytes, bytes_ * steps_.size());
    changed_.notify_all();
    return mine;
}

Result<> Background::wrote(Result<> done) {
    ++figures_.writes;
    return done;
}

Result<> Background::write(const Step& step) {
    try {
        auto* const memory = const_cast<std::byte*>(step.bytes.data());
        const std::array<void*, 1> data{memory};
        const Subject subject{*a_.plan, a_.group, nullptr, &sets_, false};
        return write_subject(a_, subject, step.path.c_str(), data.data(), step.mine);
    } catch (...) {
        Error error = caught_error();
        a_.team->abandon(error);
        return error;
    }
}

void Background::keep(Result<> done) {
    if (!done && !error_) error_ = std::move(done).error();
}

void Background::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return over_ || !steps_.empty(); });
        if (steps_.empty()) return;
        Step& step = steps_.front();  // stays in its place while others come behind it
        lock.unlock();
        Result<> done = write(step);
        lock.lock();
        keep(std::move(done));
        if (step.bytes.size() == bytes_ && free_.size() < kSteps) free_.push_back(std::move(step.bytes));
        steps_.pop_front();
        changed_.notify_all();
    }
}

void Background::settle() {
    std::unique_lock lock(mutex_);
    if (!steps_.empty()) wait_until_fewer(1, lock);
}

Result<> Background::wait() {
    std::unique_lock lock(mutex_);
    if (!steps_.empty()) wait_until_fewer(1, lock);
    if (!error_) return success();
    Error error = std::move(*error_);
    error_.reset();
    return error;
}

bool Background::idle() {
    const std::lock_guard lock(mutex_);
    return steps_.empty();
}

void Background::stop() {
    if (!thread_.joinable()) return;
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

// ---- the operations ----

Result<> write_begin(twr_aggregate* a, const char* path, const void* const* data) {
    if (a == nullptr) return refuse("aggregate is NULL");
    if (!a->background) {
        // A rank without memory for it fails in the agreement of all.
        auto made = caught([&]() -> Result<> {
            a->background = std::make_shared<Background>(*a);
            return success();
        });
        Team::Vote vote;
        vote.mine = std::move(made);
        if (auto agreed = a->team->agree(vote); !agreed) {
            a->background.reset();
            return std::move(agreed).error();
        }
    }
    Background& background = *a->background;
    // With `update` the index of several files is looked at by all ranks together, by the caller.
    const bool looks = a->group.files > 1 && a->settings.update;
    if (!background.suits()) {
        background.settle();
        TWR_CHECK(background.suit(path, caught([&] { return check_write(*a, path, data); })));
    }
    if (!background.by_thread() || looks) return background.wrote(write(a, path, data));
    return background.begin(path, data);
}

Result<> wait(twr_aggregate* a) {
    if (a == nullptr) return refuse("aggregate is NULL");
    return a->background ? a->background->wait() : success();
}

Result<> test(twr_aggregate* a, int* done) {
    if (a == nullptr) return refuse("aggregate is NULL");
    if (done == nullptr) return refuse("done is NULL");
    *done = !a->background || a->background->idle() ? 1 : 0;
    return success();
}

void settle(const twr_aggregate& a) {
    if (a.background) a.background->settle();
}

BackgroundFigures background_figures(const twr_aggregate& a) {
    if (!a.background) return {};
    BackgroundFigures figures = a.background->figures();
    figures.used = true;
    return figures;
}

}  // namespace twinrun::aggregation
