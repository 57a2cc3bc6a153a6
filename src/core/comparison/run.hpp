// One side of a comparison: places (step, rank), and at each of them named fields. A history is
// opened one place at a time, so that one of any length needs few open files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "element/dtype.hpp"
#include "element/tolerance.hpp"
#include "engine/compare.hpp"
#include "history/field.hpp"
#include "history/history.hpp"
#include "history/record_store.hpp"
#include "metadata/metadata.hpp"
#include "source/source.hpp"

namespace twinrun {

// Arrays in memory have no step.
using Step = std::optional<std::int64_t>;

// A part that could not be compared, and why.
struct Problem {
    Error error;
    // A step, rank or field that only one run has.
    bool unmatched = false;
};

// A field of one run at one place.
struct RunField {
    std::string name;
    DType dtype = DType::f32;
    ArrayOrder order = ArrayOrder::row_major;
    // As stored: the slowest dimension first.
    std::vector<std::uint64_t> shape;
    // Its place in the array of all ranks, as stored; empty: it has none.
    std::vector<std::uint64_t> global_shape;
    std::vector<std::uint64_t> global_offset;
    // The tolerance that it was captured for. nullopt: none is known.
    std::optional<Tolerance> tolerance;
    // Labels that Python stores beside a field: of dates, and of elements that are no numbers.
    std::optional<std::string> unit;
    std::optional<std::string> kind;
    FieldSide side;
    // Set for an array in memory.
    const CapturedField* array = nullptr;

    [[nodiscard]] std::uint64_t items() const;
    // Whether the order of storage matters: more than one dimension is longer than 1.
    [[nodiscard]] bool ordered() const;
    // As the application knows it.
    [[nodiscard]] std::vector<std::uint64_t> user_shape() const { return user_order(shape); }
    [[nodiscard]] std::vector<std::uint64_t> user_order(std::vector<std::uint64_t> values) const;
};

// The fields at a place, and what keeps them open. Not to be moved while a field is in use.
struct OpenPlace {
    std::vector<RunField> fields;
    std::vector<std::string> notes;
    // To open the place: headers and directories.
    std::uint64_t bytes_read = 0;
    std::shared_ptr<MetadataFile> metadata;
    std::vector<std::unique_ptr<ElementSource>> sources;
};

// Not thread-safe.
class ComparedRun {
   public:
    explicit ComparedRun(std::string label) : label_(std::move(label)) {}
    virtual ~ComparedRun() = default;
    ComparedRun(const ComparedRun&) = delete;
    ComparedRun& operator=(const ComparedRun&) = delete;

    // Names the run in messages.
    [[nodiscard]] const std::string& label() const { return label_; }
    [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
    // The ranks of each step, ascending.
    [[nodiscard]] const std::map<Step, std::vector<std::uint32_t>>& places() const { return places_; }
    [[nodiscard]] virtual Result<OpenPlace> open(Step step, std::uint32_t rank, const StreamOptions& stream,
                                                 CacheUse cache) = 0;
    // The problem that an error of this step is. If the run that writes the history has removed the
    // step meanwhile, the problem says so.
    [[nodiscard]] virtual Problem explained(Error error, Step /*step*/) { return {std::move(error)}; }

   protected:
    std::vector<std::string> notes_;
    std::map<Step, std::vector<std::uint32_t>> places_;

   private:
    std::string label_;
};

// A captured history, or the part of one rank on a node-local tier.
class HistoryRun final : public ComparedRun {
   public:
    // Errors: those of History::open().
    static Result<std::unique_ptr<HistoryRun>> open(const std::string& path);
    // One rank's part of one step. path: the folder that its journal is in.
    static std::unique_ptr<HistoryRun> of_step(const std::string& path, std::int64_t step,
                                               const RankStep& files);
    // Number of ranks of the whole history, also where this is one rank's part. 0: not known.
    [[nodiscard]] std::uint32_t ranks() const { return ranks_; }
    // Only this place remains.
    void select(std::int64_t step, std::uint32_t rank);

    Result<OpenPlace> open(Step step, std::uint32_t rank, const StreamOptions& stream,
                           CacheUse cache) override;
    Problem explained(Error error, Step step) override;

   private:
    using Entries = std::map<std::pair<std::int64_t, std::uint32_t>, RankStep>;
    explicit HistoryRun(const std::string& path) : ComparedRun(path) {}
    void take(Entries entries);
    Result<std::shared_ptr<MetadataFile>> metadata(const RankStep& files) const;
    Result<std::shared_ptr<RecordStore>> record(std::uint32_t rank);
    Result<> add_sources(OpenPlace& place, const RankStep& files, std::int64_t step, CacheUse cache);
    Result<std::vector<std::string>> changed(OpenPlace& place, const StreamOptions& stream) const;

    Entries entries_;
    std::uint32_t ranks_ = 0;
    // The step of a run that is going on: its history may lack it still.
    bool of_session_ = false;
    // Records that were used last.
    std::vector<std::pair<std::uint32_t, std::shared_ptr<RecordStore>>> records_;
};

// Arrays in memory, which outlive this.
class ArraysRun final : public ComparedRun {
   public:
    // label: names them in messages, "arrays a". Errors: invalid_argument: two arrays of one name,
    // or a layout that cannot be; unsupported: IDs of rows.
    static Result<std::unique_ptr<ArraysRun>> create(std::vector<CapturedField> arrays, std::string label);
    Result<OpenPlace> open(Step step, std::uint32_t rank, const StreamOptions& stream,
                           CacheUse cache) override;

   private:
    ArraysRun(std::vector<CapturedField> arrays, std::string label);
    std::vector<CapturedField> arrays_;
};

// From now on the field, an array in memory, is read row by row. place: keeps what that needs.
Result<> read_by_row(RunField& field, OpenPlace& place);

}  // namespace twinrun
