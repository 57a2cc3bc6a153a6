// From chunks and the Locations of their bytes to runs, by method.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/delta.hpp"

namespace twinrun {

// Tells the new chunks of a difference from copies. Its changed chunks come in ascending order; a
// chunk is new if its source is the payload's next chunk.
class NewChunks {
   public:
    explicit NewChunks(Location next) : next_(next) {}
    // Whether the chunk of this source is new.
    bool operator()(Location source) {
        if (source != next_) return false;
        ++next_;
        return true;
    }
    // So many chunks, which were new, were passed over.
    void pass(std::uint64_t count) { next_ += count; }

   private:
    Location next_;
};

// Makes runs of chunks that come in ascending order, in one pass. What is new to the payload and
// what is a copy never share a run. A run goes on for as long as chunks are neighbours and their
// sources step by one, or, from its second chunk on, by none: of all divisions into such runs this
// has the fewest.
class RunJoiner {
   public:
    // ordinal: of the difference; payload: chunks of it that came before.
    RunJoiner(RecordMethod method, std::uint32_t ordinal, std::vector<Run>& runs)
        : method_(method), is_new_(location(ordinal, 0)), runs_(runs) {}

    void add(std::uint64_t chunk, Location source) {
        const bool payload = is_new_(source);
        if (!runs_.empty() && open_ && payload == payload_) {
            Run& run = runs_.back();
            if (chunk == run.begin + run.count) {
                const Location last = run.repeat ? run.source : run.source + run.count - 1;
                if (source == last + 1 && !run.repeat) {
                    ++run.count;
                    return;
                }
                if (source == last && (run.repeat || run.count == 1)) {
                    run.repeat = true;
                    ++run.count;
                    return;
                }
            }
        }
        runs_.push_back({chunk, 1, source, false});
        payload_ = payload;
        // For the published methods only new chunks are joined here: their copies have one entry a
        // chunk.
        open_ = method_ == RecordMethod::runs || payload;
    }
    // A region that is one entry already.
    void add_region(std::uint64_t chunk, std::uint64_t count, Location source, bool payload) {
        if (payload) is_new_.pass(count);
        runs_.push_back({chunk, count, source, false});
        open_ = false;
    }

   private:
    RecordMethod method_;
    NewChunks is_new_;
    std::vector<Run>& runs_;
    bool payload_ = false;
    bool open_ = false;  // the last run may grow
};

}  // namespace twinrun
