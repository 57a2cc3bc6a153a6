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

// Of Vote::figures.largest. Zero: nothing to say, which never wins. Behind it: LastTransfer's.
enum Figure : std::size_t { kAlone, kOwnFigures };

bool far_away(const Part& part) {
    return !part.parts.empty() && part.parts.back().where.end() > LastTransfer::kFarthest;
}

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
    const bool alone = !part.pieces.empty() || far_away(part);
    if (alone) figures[kAlone] = 1;
    last_.put(alone ? std::span<const ArrayPart>() : std::span<const ArrayPart>(part.parts),
              figures.subspan(kOwnFigures));
}

// [collective] Makes the plan for this transfer, or moves the last one.
Result<> Collective::plan(const Part& part, const Outcome& agreed) {
    const auto places = std::span<const double>(agreed.figures.largest).subspan(kOwnFigures);
    const aggregation::StorageTraits traits{agreed.payload[0],
                                            {agreed.payload[1], agreed.payload[2], agreed.payload[3]}};
    if (!(traits == aggregate_->plan->traits())) {
        last_.forget();
        TWR_CHECK(aggregate_->plan->adapt(traits));
    }
    const bool reads = part.mode == Mode::read;
    // Blocks of network file systems, and stripes, have one writer each.
    if (last_.follow(places, reads, traits.direct.alignment != 1 ? traits.block : 1)) return success();
    auto sets = caught([&] { return last_.renew(part.parts, LastTransfer::zero(places, traits.block)); });
    ++plans_;
    TWR_CHECK(aggregate_->plan->declare(std::move(sets), 1, reads));
    last_.declared(reads);
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
    const std::span<const double> all = agreed.figures.largest;
    bool alone = all[kAlone] != 0;
    if (!alone && !LastTransfer::has_data(all.subspan(kOwnFigures))) return success();
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
    aggregation::OpenFile file{-1, name_, last_.base()};
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
