// Chunks in host memory.
#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "dedup/base_deduplicator.hpp"
#include "dedup/deduplicator.hpp"
#include "dedup/hash_table.hpp"
#include "dedup/host_image.hpp"
#include "dedup/host_payload.hpp"
#include "dedup/host_sources.hpp"
#include "dedup/host_tree_join.hpp"
#include "dedup/join.hpp"
#include "dedup/shares.hpp"
#include "platform/team.hpp"

namespace twinrun {

namespace {

constexpr std::uint64_t kHostSliceBytes = std::uint64_t{64} << 20;

class HostDeduplicator final : public BaseDeduplicator {
   public:
    explicit HostDeduplicator(const DedupOptions& given)
        : BaseDeduplicator(given),
          slice_chunks_(given.slice_chunks != 0 ? given.slice_chunks : kHostSliceBytes / given.chunk_bytes),
          team_(std::max(1, given.threads)),
          table_(given.table_bytes),
          image_(options(), team_),
          sources_(options(), team_, table_, image_) {}

    [[nodiscard]] DedupFacts facts() const override {
        DedupFacts facts;
        facts.entries = table_.entries();
        facts.table_bytes = table_.bytes();
        facts.evicted = table_.evicted();
        facts.memory_bytes = table_.bytes() + image_.memory_bytes() + sources_.memory_bytes() +
                             changed_.capacity() * sizeof(std::uint64_t);
        return facts;
    }

   private:
    // The step under way.
    struct HostStep {
        std::uint32_t ordinal;
        bool fully;
        StepOutcome& outcome;
        RunJoiner joiner;
        HostPayload payload;
    };

    Result<> take(std::uint32_t ordinal, std::span<const ImageSegment> segments, PayloadSink& sink,
                  StepOutcome& outcome) override {
        outcome.runs.clear();
        TWR_CHECK(image_.begin(segments));
        sources_.begin(ordinal);
        HostStep step{ordinal, taken_fully(outcome, table_.entries()), outcome,
                      RunJoiner(options().method, ordinal, outcome.runs),
                      HostPayload(options(), team_, image_, ordinal, sink)};
        outcome.chunks = image_.chunks();
        for (std::uint64_t first = 0; first < outcome.chunks; first += slice_chunks_)
            TWR_CHECK(take_slice(step, first, std::min(outcome.chunks, first + slice_chunks_)));
        outcome.payload = sources_.placed();
        outcome.collisions += sources_.collisions();
        image_.become_base();
        outcome.content = image_.content();
        return success();
    }

    Result<> take_slice(HostStep& step, std::uint64_t first, std::uint64_t last) {
        step.outcome.collisions += image_.find_changed(first, last, changed_);
        step.outcome.changed += changed_.size();
        if (changed_.empty()) return success();
        TreeSlice slice;
        slice.ordinal = step.ordinal;
        slice.first = first;
        slice.last = last;
        slice.placed = sources_.placed();
        slice.verify = options().verify;
        const bool as_tree =
            options().method == RecordMethod::tree && table_.most_at_once() >= 2 * changed_.size();
        if (step.fully) {
            sources_.take_all(changed_, as_tree);
        } else {
            TWR_CHECK(sources_.find(changed_, as_tree));
        }
        slice.changed = changed_;
        slice.sources = sources_.sources();
        if (as_tree) {
            join_tree(slice, image_, table_, team_, step.joiner);
        } else {
            join(slice, step.joiner);
        }
        TWR_CHECK(step.payload.send(changed_, sources_.sources()));
        if (options().keep_base) image_.keep(changed_, sources_.sources());
        return success();
    }

    void join(const TreeSlice& slice, RunJoiner& joiner) const {
        if (options().method != RecordMethod::tree) {
            for (std::size_t j = 0; j < slice.changed.size(); ++j)
                joiner.add(slice.changed[j], slice.sources[j]);
            return;
        }
        // The table is too small for nodes: leaves alone.
        NewChunks is_new(location(slice.ordinal, slice.placed));
        for (std::size_t j = 0; j < slice.changed.size(); ++j)
            joiner.add_region(slice.changed[j], 1, slice.sources[j], is_new(slice.sources[j]));
    }

    Result<std::uint64_t> send_all(std::span<const ImageSegment> segments, PayloadSink& sink) override {
        TWR_TRY(const ImageLayout layout, ImageLayout::make(segments, options().chunk_bytes));
        TWR_CHECK(layout.check_names());
        TWR_CHECK(send_whole(segments, options().chunk_bytes, sink));
        return layout.chunks();
    }

    Result<> replace_base(std::span<const ImageSegment> segments, std::span<const Location> where) override {
        return image_.replace_base(segments, where);
    }

    Result<> enter(Location first, std::span<const std::byte> chunks) override {
        const std::uint64_t chunk = options().chunk_bytes;
        const std::uint64_t count = chunks.size() / chunk;
        const std::uint64_t most = std::max<std::uint64_t>(1, table_.most_at_once() / 2);
        for (std::uint64_t done = 0; done < count;) {
            const std::uint64_t part = std::min(most, count - done);
            if (!table_.reserve(part, team_)) return success();
            each_item(team_, part, [&](std::uint64_t i) {
                const ChunkHash hash = image_.masked(chunk_hash(chunks.data() + (done + i) * chunk, chunk));
                table_.use(table_.insert(hash, first + done + i), ordinal_of(first));
            });
            done += part;
        }
        return success();
    }

    void drop() override {
        table_.clear();
        image_.forget();
    }

    const std::uint64_t slice_chunks_;
    Team team_;
    HashTable table_;
    HostImage image_;
    HostSources sources_;
    std::vector<std::uint64_t> changed_;  // of a slice; kept to reuse the memory
};

}  // namespace

Result<std::unique_ptr<Deduplicator>> make_host_deduplicator(const DedupOptions& options) {
    const auto wrong = [](std::string what) { return Error{ErrorCode::invalid_argument, std::move(what)}; };
    TWR_CHECK(check_dedup_options(options));
    if ((options.verify || options.give_base) && !options.keep_base)
        return wrong("verify and give_base need keep_base");
    if (options.verify && !options.read) return wrong("verify needs to read earlier payload");
    if (options.pack_block_bytes != 0) return wrong("payload in host memory is packed by who takes it");
    try {
        return std::unique_ptr<Deduplicator>(std::make_unique<HostDeduplicator>(options));
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::out_of_memory, "not enough memory for a record"};
    }
}

}  // namespace twinrun
