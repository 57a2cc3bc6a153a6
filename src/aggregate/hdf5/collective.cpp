#include "aggregate/hdf5/collective.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "aggregate/mpi/target.hpp"
#include "base/caught.hpp"

namespace twinrun::hdf5 {

using aggregation::Outcome;
using aggregation::Team;

namespace {

// Figures are doubles: larger places could not be distinguished.
constexpr std::uint64_t kLargest = std::uint64_t{1} << 50;
// Figures of steps: what is added to them, so that a step back is one too.
constexpr auto kNoStep = static_cast<double>(2 * kLargest);

// Of Vote::figures.largest. Zero: nothing to say, which never wins.
enum Figure : std::size_t { kAlone, kBelow, kAhead, kBack, kChanged };

// Whether parts are the old ones, all `delta` bytes farther in the file.
bool moved_by(const std::vector<ArrayPart>& now, const std::vector<ArrayPart>& before, std::uint64_t delta) {
    return std::equal(now.begin(), now.end(), before.begin(), before.end(),
                      [&](const ArrayPart& a, const ArrayPart& b) {
                          return a.where.offset == b.where.offset + delta && a.where.width == b.where.width &&
                                 a.where.count == b.where.count && a.where.stride == b.where.stride &&
                                 a.memory_offset == b.memory_offset && a.memory_stride == b.memory_stride;
                      });
}

bool far_away(const Part& part) { return !part.parts.empty() && part.parts.back().where.end() > kLargest; }

}  // namespace

Collective::Collective(MPI_Comm comm, Config config, std::string name)
    : comm_(comm), config_(std::move(config)), name_(std::move(name)) {}

Collective::~Collective() {
    report();
    aggregation::release(aggregate_);
}

// What a user asked for: nothing else is printed.
void Collective::report() const {
    const char* const asked = std::getenv("TWINRUN_HDF5_REPORT");
    if (asked == nullptr || *asked == '\0' || std::strcmp(asked, "0") == 0) return;
    if (aggregate_ == nullptr || aggregate_->team->rank() != 0) return;
    std::fprintf(
        stderr,
        "twinrun_hdf5: %s: %llu collective transfers aggregated by %llu plans, %llu by each rank alone\n",
        name_.c_str(), static_cast<unsigned long long>(aggregated_), static_cast<unsigned long long>(plans_),
        static_cast<unsigned long long>(alone_));
}

bool Collective::broken() const {
    return aggregate_ != nullptr && (aggregate_->team->broken() || aggregate_->team->abandoned());
}

Result<> Collective::start() {
    if (aggregate_ == nullptr) {
        TWR_CHECK(aggregation::create(&aggregate_, comm_,
                                      [&]() -> Result<aggregation::Settings> { return config_.settings; }));
    }
    if (aggregate_->team->broken()) return aggregate_->team->why_broken();
    return success();
}

Result<Outcome> Collective::agree(Result<> mine, std::function<Result<>(Outcome&)> by_one) {
    TWR_CHECK(start());
    Team::Vote vote;
    vote.patient = !config_.limited;
    vote.same = 1;
    vote.differs = "the ranks do different things with one file";
    vote.mine = std::move(mine);
    if (by_one) {
        vote.on_root = [&](Outcome& outcome) { return caught([&] { return by_one(outcome); }); };
    }
    return aggregate_->team->agree(vote);
}

Result<> Collective::look_at_storage(const Store& store, Outcome& outcome) {
    if (!traits_) {
        TWR_TRY(aggregation::StorageTraits traits,
                aggregation::storage_traits("/proc/self/fd/" + std::to_string(store.files().numbers.front()),
                                            config_.settings.block_bytes));
        if (store.facts().several) traits.block = std::max(traits.block, store.facts().stripes.bytes);
        traits_ = traits;
    }
    outcome.payload[0] = traits_->block;
    outcome.payload[1] = traits_->direct.least_bytes;
    outcome.payload[2] = traits_->direct.alignment;
    outcome.payload[3] = traits_->direct.least_alone;
    return success();
}

void Collective::put_figures(const Part& part, std::span<double> figures) const {
    if (!part.pieces.empty() || far_away(part)) {
        figures[kAlone] = 1;
        figures[kBelow] = 1;
        return;
    }
    if (part.parts.empty()) {
        if (!parts_.empty()) figures[kChanged] = 1;
        return;
    }
    const std::uint64_t begin = part.parts.front().where.begin();
    figures[kBelow] = static_cast<double>(kLargest - begin + 1);
    const std::uint64_t before = parts_.empty() ? 0 : parts_.front().where.begin();
    const std::uint64_t delta = begin - before;
    if (declared_ && moved_by(part.parts, parts_, delta)) {
        const auto step = static_cast<double>(static_cast<std::int64_t>(delta));
        figures[kAhead] = kNoStep + step;
        figures[kBack] = kNoStep - step;
    } else {
        figures[kChanged] = 1;
    }
}

// By what the ranks agreed on: how many bytes the plan of the last transfer moves to be that of
// this one; nullopt: a new plan is needed.
std::optional<std::int64_t> Collective::step_of_plan(std::span<const double> figures, Mode mode) const {
    const bool same_step = figures[kAhead] - kNoStep == kNoStep - figures[kBack];
    if (!declared_ || figures[kChanged] != 0 || !same_step) return std::nullopt;
    if (shared_ && mode != Mode::read) return std::nullopt;
    const auto step = static_cast<std::int64_t>(figures[kAhead] - kNoStep);
    // Blocks of network file systems, and stripes, have one writer each.
    const aggregation::StorageTraits& traits = aggregate_->plan->traits();
    if (traits.direct.alignment != 1 && step % static_cast<std::int64_t>(traits.block) != 0)
        return std::nullopt;
    return step;
}

// [collective] Makes the plan for this transfer, or moves the last one.
Result<> Collective::plan(const Part& part, const Outcome& agreed) {
    const auto& all = agreed.figures.largest;
    const aggregation::StorageTraits traits{agreed.payload[0],
                                            {agreed.payload[1], agreed.payload[2], agreed.payload[3]}};
    if (!(traits == aggregate_->plan->traits())) {
        declared_ = false;
        TWR_CHECK(aggregate_->plan->adapt(traits));
    }
    if (const auto step = step_of_plan(all, part.mode)) {
        base_ += static_cast<std::uint64_t>(*step);
        for (ArrayPart& own : parts_)
            own.where.offset += static_cast<std::uint64_t>(*step);
        return success();
    }
    const std::uint64_t first = kLargest + 1 - static_cast<std::uint64_t>(all[kBelow]);
    const std::uint64_t zero = first - first % traits.block;
    declared_ = false;
    shared_ = part.mode == Mode::read;
    auto sets = caught([&]() -> Result<std::vector<RankSet>> {
        parts_ = part.parts;
        std::vector<ArrayPart> relative = part.parts;
        for (ArrayPart& own : relative)
            own.where.offset -= zero;
        return rank_sets(relative);
    });
    ++plans_;
    TWR_CHECK(aggregate_->plan->declare(std::move(sets), 1, shared_));
    base_ = zero;
    declared_ = true;
    return success();
}

Result<> Collective::move(Store& store, const Part& part) {
    TWR_CHECK(start());
    Team& team = *aggregate_->team;
    Team::Vote vote;
    vote.patient = !config_.limited;
    vote.same = static_cast<std::uint64_t>(part.mode) + 2;
    vote.differs = "collective transfers of one file differ from those of rank 0";
    vote.mine = part.checked;
    if (vote.mine && part.mode == Mode::write) vote.mine = caught([&] { return store.begin_writing(); });
    put_figures(part, vote.figures.largest);
    vote.on_root = [&](Outcome& outcome) { return caught([&] { return look_at_storage(store, outcome); }); };
    TWR_TRY(const Outcome agreed, team.agree(vote));

    // From here on all ranks decide alike.
    const auto& all = agreed.figures.largest;
    if (all[kBelow] == 0) return success();  // no rank has data
    bool alone = all[kAlone] != 0;
    if (!alone) {
        auto planned = plan(part, agreed);
        if (team.broken()) return team.why_broken();
        if (!planned && part.mode == Mode::write && !config_.overlap) {
            return Error{planned.error().code,
                         name_ + ": " + planned.error().message +
                             " (where ranks are to write the same bytes, set overlap = true)"};
        }
        alone = !planned;
    }
    ++(alone ? alone_ : aggregated_);
    if (alone) {
        TWR_CHECK(agree(caught([&] { return move_alone(store, part); })));
        return success();
    }
    aggregation::OpenFile file{-1, name_, base_};
    file.striped = &store.files();
    return aggregation::move(*aggregate_, part.mode, file, part.base);
}

Result<> move_alone(Store& store, const Part& part) {
    std::vector<Piece> pieces = part.pieces;
    const auto flush = [&]() -> Result<> {
        TWR_CHECK(part.mode == Mode::write ? store.write(pieces) : store.read(pieces));
        pieces.clear();
        return success();
    };
    constexpr std::size_t kBatch = 4096;
    for (const ArrayPart& own : part.parts) {
        for (std::uint64_t i = 0; i < own.where.count; ++i) {
            const std::int64_t at = own.memory_offset + static_cast<std::int64_t>(i) * own.memory_stride;
            pieces.push_back({own.where.offset + i * own.where.stride, part.base + at, own.where.width});
            if (pieces.size() == kBatch) TWR_CHECK(flush());
        }
    }
    return pieces.empty() ? success() : flush();
}

}  // namespace twinrun::hdf5
