// A write and a read, from the checks before to the file's name after.
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "aggregate/mpi/aggregate.hpp"
#include "aggregate/mpi/index.hpp"
#include "aggregate/mpi/pipeline.hpp"
#include "aggregate/mpi/refusal.hpp"
#include "aggregate/mpi/storage.hpp"
#include "aggregate/mpi/target.hpp"
#include "aggregate/mpi/transfer.hpp"
#include "base/caught.hpp"
#include "base/checksum.hpp"

namespace twinrun::aggregation {

namespace {

std::string path_of(const twr_aggregate& a, const char* path) {
    if (a.group.files == 1) return path;
    return sub_file_name(path, static_cast<std::size_t>(a.group.file));
}

std::string files_text(std::size_t count) {
    return count == 1 ? std::string("one file") : std::to_string(count) + " files";
}

// On rank 0: the index of an earlier write; nullopt if there is none. Also where indices are turned
// off: an old one would say of the new files where the bytes of the old ones were. On other ranks
// nullopt.
Result<std::optional<Index>> earlier_index(const twr_aggregate& a, const char* path) {
    if (a.team->rank() != 0) return std::optional<Index>();
    auto found = read_index(path);
    // A single file needs no index: a foreign file with the index' name is left alone.
    if (!found && a.group.files == 1 && found.error().code == ErrorCode::invalid_argument)
        return std::optional<Index>();
    return found;
}

Result<> same_number(const twr_aggregate& a, const char* path, const Index& index, const char* doing) {
    const auto files = static_cast<std::size_t>(a.group.files);
    if (index.size() == files) return success();
    return Error{ErrorCode::mismatch, std::string(path) + ": was written as " + files_text(index.size()) +
                                          " (" + index_name(path) + "), and " + files_text(files) +
                                          " would be " + doing +
                                          ": as many ranks, nodes or nodes_per_file are needed as wrote it" +
                                          (*doing == 'r' ? ", or, to read with any, files = one" : "")};
}

}  // namespace

Result<> check_arguments(const twr_aggregate& a, const char* path, const void* const* data) {
    TWR_CHECK(not_refused());
    if (!a.plan->declared())
        return refuse("nothing is declared (twr_aggregate_declare), or the last declaration failed");
    if (path == nullptr || *path == '\0') return refuse("path is NULL or empty");
    if (data == nullptr && a.plan->variables() != 0) return refuse("data is NULL");
    for (const RankSet& set : a.plan->sets()) {
        for (const Field& field : set.fields) {
            if (data[field.variable] == nullptr) {
                return refuse("data of variable " + std::to_string(field.variable) +
                              " is NULL, and it has items");
            }
        }
    }
    return success();
}

Result<> check_write(const twr_aggregate& a, const char* path, const void* const* data) {
    if (a.settings.overlap) {
        return refuse(
            "overlap is set: several ranks may have declared a byte, and which of them counts would be left "
            "to chance: write with another aggregate");
    }
    return check_arguments(a, path, data);
}

namespace {

// [collective] Before several files are read or updated: checks that the index names as many files
// as this aggregate has, and that none has the name of another one. Otherwise a rank would miss a
// file, make one too many, or take another rank's.
Result<> check_index(twr_aggregate& a, const char* path, const void* const* data, bool reads) {
    if (!a.settings.index && reads) return success();
    Team::Vote vote;
    vote.mine = caught([&] { return check_arguments(a, path, data); });
    vote.on_root = [&](Outcome&) {
        return caught([&]() -> Result<> {
            TWR_TRY(const std::optional<Index> index, earlier_index(a, path));
            if (index && index->whole()) {
                return Error{ErrorCode::mismatch,
                             std::string(path) + ": has parts of a whole file (" + index_name(path) +
                                 "), and offsets of single files are declared: set offsets = whole, or, to "
                                 "read, files = one"};
            }
            if (index) {
                TWR_CHECK(same_number(a, path, *index, reads ? "read" : "updated"));
                return check_exchanged(path, *index);
            }
            if (!reads) return success();  // the first write makes them
            return Error{
                ErrorCode::not_found,
                index_name(path) +
                    ": is not there: a write of these files did not end, or something else wrote them; "
                    "write them again, or set no_index"};
        });
    };
    TWR_CHECK(a.team->agree(vote));
    return success();
}

void put_traits(Outcome& outcome, const StorageTraits& traits) {
    outcome.payload[0] = traits.block;
    outcome.payload[1] = traits.direct.least_bytes;
    outcome.payload[2] = traits.direct.alignment;
    outcome.payload[3] = traits.direct.least_alone;
}

StorageTraits traits_in(const Outcome& outcome) {
    return {outcome.payload[0], {outcome.payload[1], outcome.payload[2], outcome.payload[3]}};
}

Figures figures_of(const Work& work, double seconds) {
    Figures figures;
    figures.sums[kShared] = work.shared_bytes;
    figures.sums[kRemote] = work.remote_bytes;
    figures.sums[kDirect] = work.direct_bytes;
    figures.sums[kWindows] = work.windows;
    figures.largest[kGather] = work.gather_seconds;
    figures.largest[kDirectSeconds] = work.direct_seconds;
    figures.largest[kStorage] = work.storage_seconds;
    figures.largest[kWait] = work.wait_seconds;
    figures.largest[kTotal] = seconds;
    return figures;
}

// Keeps the figures for the report. The transfer itself succeeded, so a lack of memory here is no
// error.
void note_transfer(std::optional<Transfer>& to, const char* path, const Figures& figures, double renamed) {
    to.reset();
    const auto noted = caught([&]() -> Result<> {
        to = Transfer{path, figures, renamed};
        return success();
    });
    static_cast<void>(noted);
}

}  // namespace

Result<std::unique_ptr<Pipeline>> begin(twr_aggregate& a, const Subject& subject, Mode mode,
                                        void* const* data, const char* path, Result<> mine,
                                        const std::string& looked_at) {
    std::unique_ptr<Pipeline> pipeline;
    const auto make = [&]() -> Result<> {
        return caught([&]() -> Result<> {
            pipeline =
                std::make_unique<Pipeline>(*a.team, a.settings, subject.group, subject.plan, mode, data);
            pipeline->use(subject.files);
            pipeline->use(subject.sets);
            return pipeline->prepare();
        });
    };
    Team::Vote vote;
    vote.differs = "the path differs from that of rank 0";
    vote.mine = caught([&]() -> Result<> {
        if (path != nullptr) vote.same = xxh3(std::string_view(path));
        TWR_CHECK(std::move(mine));
        return make();
    });
    vote.on_root = [&](Outcome& outcome) -> Result<> {
        TWR_TRY(const StorageTraits traits,
                caught([&] { return storage_traits(looked_at, a.settings.block_bytes); }));
        put_traits(outcome, traits);
        return success();
    };
    TWR_TRY(const Outcome outcome, a.team->agree(vote));
    if (traits_in(outcome) == subject.plan.traits() || !subject.plans_again) return pipeline;
    pipeline.reset();
    TWR_CHECK(subject.plan.adapt(traits_in(outcome)));
    Team::Vote again;
    again.mine = make();
    TWR_CHECK(a.team->agree(again));
    return pipeline;
}

Result<> finish_read(twr_aggregate& a, Pipeline& pipeline, const std::string& file, const char* path,
                     Clock::time_point start) {
    Team::Vote done;
    done.mine = pipeline.run(file);
    if (a.team->broken()) return a.team->why_broken();
    if (auto closed = caught([&] { return pipeline.close(); }); done.mine && !closed)
        done.mine = std::move(closed);
    done.figures = figures_of(pipeline.work(), seconds_since(start));
    TWR_TRY(const Outcome outcome, a.team->agree(done));
    note_transfer(a.read, path, outcome.figures, 0);
    return success();
}

namespace {

// Where the bytes of all sub-files lie in the whole.
void add_places(const twr_aggregate& a, Index& index) {
    if (!a.whole) return;
    const auto& sets = a.whole->table().sets();
    index.whole_bytes = a.whole->table().span().end;
    // In a sub-file ranks come one after the other, as they do in the communicator of its ranks.
    std::vector<std::vector<StridedSet>> of_rank(static_cast<std::size_t>(a.everyone.ranks));
    for (const OwnedSet& owned : sets)
        of_rank[owned.rank].push_back(owned.set);
    index.places.resize(index.size());
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
        auto& file = index.places[static_cast<std::size_t>(a.file_of[rank])];
        file.insert(file.end(), of_rank[rank].begin(), of_rank[rank].end());
    }
}

// The number in the name of this write's partial file. It is as hard to guess as the seed, and
// equal on all ranks without communication.
std::uint64_t number_of_write(const twr_aggregate& a) {
    const std::array<std::uint64_t, 2> both{a.seed_of_names, a.writes};
    return xxh3(std::as_bytes(std::span(both)));
}

// One write of a file, from before all ranks begin to the last agreement.
class FileWrite {
   public:
    FileWrite(twr_aggregate& a, const char* path)
        : a_(a),
          path_(path),
          files_(static_cast<std::size_t>(a.group.files)),
          // Where ranks share a file, one sync on each node is enough, by its leader when all have
          // written.
          syncs_alone_(a.settings.files == Files::rank || a.settings.backend == Backend::mpiio) {}

    // Makes the file that is written into. Any later error removes it.
    Result<> prepare() {
        const std::string path = path_of(a_, path_);
        TWR_TRY(earlier_, earlier_index(a_, path_));
        if (updates() && earlier_) TWR_CHECK(same_number(a_, path_, *earlier_, "updated"));
        target_ = updates() ? path : partial_name(path, number_of_write(a_));
        if (a_.group.rank != 0) return success();
        const Striping& striping = a_.settings.striping;
        return updates() ? touch_file(path, striping) : partial_.create(path, target_, striping);
    }
    [[nodiscard]] const std::string& target() const { return target_; }

    // [collective] Runs the pipeline and puts the files into place. start: of the write.
    Result<> run(Pipeline& pipeline, Clock::time_point start) {
        Team::Vote vote;
        vote.mine = pipeline.run(target_);
        if (a_.team->broken()) return a_.team->why_broken();
        double sync_seconds = 0;
        if (a_.settings.sync && syncs_alone_ && vote.mine) {
            const auto begin = Clock::now();
            vote.mine = caught([&] { return pipeline.sync(); });
            sync_seconds = seconds_since(begin);
        }
        if (auto closed = caught([&] { return pipeline.close(); }); vote.mine && !closed)
            vote.mine = std::move(closed);
        vote.figures = figures_of(pipeline.work(), seconds_since(start));
        vote.figures.largest[kSync] = sync_seconds;
        if (a_.settings.sync && !syncs_alone_)
            vote.on_node = [&](Outcome& outcome) { return sync_node(outcome); };
        vote.on_root = [&](Outcome& outcome) { return finish_on_root(outcome); };
        TWR_TRY(Outcome outcome, a_.team->agree(vote));
        if (files_ > 1) TWR_CHECK(commit_sub_files(outcome));
        const double renamed = files_ == 1 ? static_cast<double>(outcome.payload[0]) * 1e-9 : 0;
        note_transfer(a_.written, path_, outcome.figures, renamed);
        return success();
    }

   private:
    [[nodiscard]] bool updates() const { return a_.settings.update; }

    Result<> sync_node(Outcome& outcome) {
        const auto begin = Clock::now();
        auto done = caught([&] { return sync_file(target_, updates()); });
        outcome.figures.largest[kSync] = std::max(outcome.figures.largest[kSync], seconds_since(begin));
        return done;
    }

    // Gives this rank's file its name.
    Result<> commit(std::uint64_t& nanoseconds) {
        if (updates()) return success();
        const auto begin = Clock::now();
        TWR_CHECK(caught([&] { return partial_.commit(a_.settings.sync); }));
        nanoseconds = static_cast<std::uint64_t>(seconds_since(begin) * 1e9);
        return success();
    }

    // On rank 0, after all ranks have written.
    Result<> finish_on_root(Outcome& outcome) {
        if (files_ == 1) TWR_CHECK(commit(outcome.payload[0]));
        // An update with an index writes that one again, at the end.
        if (!earlier_ || (updates() && a_.settings.index)) return success();
        // One file is in place now, and replaces the sub-files of an earlier write. Several files
        // get their names next: until all have them there is no index, because they are of two
        // writes.
        return caught([&]() -> Result<> {
            // Somebody may have put another file there since it was read.
            TWR_TRY(const std::optional<Index> there, earlier_index(a_, path_));
            if (there) TWR_CHECK(remove_index(path_, there->own, a_.settings.sync));
            if (files_ == 1 && !updates()) remove_sub_files(path_, *earlier_, 0);
            return success();
        });
    }

    // [collective] Gives all sub-files their names, then writes the index.
    Result<> commit_sub_files(Outcome& outcome) {
        Team::Vote vote;
        if (a_.group.rank == 0) vote.mine = commit(outcome.payload[0]);
        if (a_.settings.index || earlier_) {
            vote.on_root = [&](Outcome&) {
                return caught([&]() -> Result<> {
                    if (a_.settings.index) {
                        TWR_TRY(Index index, look_at_sub_files(path_, files_));
                        add_places(a_, index);
                        TWR_CHECK(write_index(path_, index, updates(), a_.settings.sync));
                    }
                    if (earlier_) remove_sub_files(path_, *earlier_, files_);
                    return success();
                });
            };
        }
        TWR_CHECK(a_.team->agree(vote));
        return success();
    }

    twr_aggregate& a_;
    const char* path_;
    std::size_t files_;
    bool syncs_alone_;
    std::string target_;
    PartialFile partial_;
    std::optional<Index> earlier_;
};

}  // namespace

Result<> write(twr_aggregate* a, const char* path, const void* const* data) {
    if (a == nullptr) return refuse("aggregate is NULL");
    settle(*a);
    if (a->group.files > 1 && a->settings.update) TWR_CHECK(check_index(*a, path, data, false));
    Result<> mine = caught([&] { return check_write(*a, path, data); });
    auto* const const_data = reinterpret_cast<const void* const*>(data);
    return write_subject(*a, {*a->plan, a->group}, path, const_cast<void* const*>(const_data),
                         std::move(mine));
}

Result<> write_subject(twr_aggregate& a, const Subject& subject, const char* path, void* const* data,
                       Result<> mine) {
    ++a.writes;
    const auto start = Clock::now();
    FileWrite file(a, path);
    if (mine) mine = caught([&] { return file.prepare(); });
    TWR_TRY(const auto pipeline, begin(a, subject, Mode::write, data, path, std::move(mine), file.target()));
    return file.run(*pipeline, start);
}

Result<> suit_storage(twr_aggregate& a, const char* path, Result<> mine) {
    Team::Vote vote;
    vote.mine = std::move(mine);
    vote.on_root = [&](Outcome& outcome) {
        return caught([&]() -> Result<> {
            TWR_TRY(const StorageTraits traits,
                    storage_traits(folder_of(path), a.settings.block_bytes, a.settings.striping.unit));
            put_traits(outcome, traits);
            return success();
        });
    };
    TWR_TRY(const Outcome outcome, a.team->agree(vote));
    return a.plan->adapt(traits_in(outcome));
}

Result<> read(twr_aggregate* a, const char* path, void* const* data) {
    if (a == nullptr) return refuse("aggregate is NULL");
    settle(*a);
    const auto start = Clock::now();
    if (a->settings.index && (a->group.files == 1 || a->whole)) {
        TWR_TRY(const bool done, read_stored(*a, path, data));
        if (done) return success();
    } else if (a->group.files > 1) {
        TWR_CHECK(check_index(*a, path, data, true));
    }
    std::string own;
    Result<> mine = caught([&]() -> Result<> {
        TWR_CHECK(check_arguments(*a, path, data));
        own = path_of(*a, path);
        if (a->group.rank != 0) return success();
        TWR_TRY(const std::uint64_t size, file_size(own));
        const std::uint64_t end = a->plan->table().span().end;
        if (size >= end) return success();
        return Error{ErrorCode::damaged,
                     own + ": has " + std::to_string(size) + " bytes, and " + std::to_string(end) +
                         " are declared: it is not the file that was written, or it was cut"};
    });
    TWR_TRY(const auto pipeline,
            begin(*a, {*a->plan, a->group}, Mode::read, data, path, std::move(mine), own));
    return finish_read(*a, *pipeline, own, path, start);
}

Move::Move(twr_aggregate& a, Mode mode, void* data) : a_(a), mode_(mode), data_{data} {}
Move::~Move() = default;

Result<> Move::prepare() {
    return caught([&]() -> Result<> {
        pipeline_ = std::make_unique<Pipeline>(*a_.team, a_.settings, a_.group, *a_.plan, mode_, data_);
        return pipeline_->prepare();
    });
}

bool Move::deposit() { return pipeline_->deposit(); }

Result<> Move::store(const OpenFile& file) {
    pipeline_->use(&file);
    return caught([&] { return pipeline_->store(); });
}

Result<> Move::run(const OpenFile& file) {
    const auto start = Clock::now();
    pipeline_->use(&file);
    Team::Vote done;
    done.mine = pipeline_->run(file.path);
    if (a_.team->broken()) return a_.team->why_broken();
    if (auto closed = caught([&] { return pipeline_->close(); }); done.mine && !closed)
        done.mine = std::move(closed);
    done.figures = figures_of(pipeline_->work(), seconds_since(start));
    TWR_TRY(const Outcome outcome, a_.team->agree(done));
    note_transfer(mode_ == Mode::write ? a_.written : a_.read, file.path.c_str(), outcome.figures, 0);
    return success();
}

Result<> move(twr_aggregate& a, Mode mode, const OpenFile& file, void* data) {
    Move whole(a, mode, data);
    Team::Vote ready;
    ready.mine = whole.prepare();
    TWR_CHECK(a.team->agree(ready));
    return whole.run(file);
}

}  // namespace twinrun::aggregation
