// Pairs of arrays on devices that are compared while their containers are still being walked.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/batch.hpp"
#include "engine/pair_queue.hpp"
#include "field_list.hpp"
#include "list_results.hpp"
#include "list_rules.hpp"
#include "shared.hpp"

namespace twinrun {

namespace nb = nanobind;

// Two dictionaries of arrays that are compared while they are walked: pairs on devices whose names
// are at the same place in both. What the lists are compared with later decides whether the results
// count: they are read only, so that nothing is lost else.
class StartedPairs {
   public:
    StartedPairs(const DifferenceRule& of_floating, const DifferenceRule& of_others,
                 const PyCompareOptions& how)
        : of_floating_(of_floating),
          of_others_(of_others),
          options_(how.options),
          poll_(how.options.stream.poll),
          progress_(how.progress),
          queue_(std::in_place, how.options.device, [this](const FoundPairs& found) { take(found); }) {
        options_.stream.poll = nullptr;  // results may be taken by another thread than Python's
    }
    ~StartedPairs() { end(); }
    StartedPairs(const StartedPairs&) = delete;
    StartedPairs& operator=(const StartedPairs&) = delete;

    // Begins what can be of the fields that were taken since the last call. False: names part from
    // here on.
    bool add(const FieldList& a, const FieldList& b);
    // leads: later work of the arrays' streams waits.
    void start(bool leads) { queue_->start(leads); }
    // The lists, as they stay.
    void hold(nb::object a, nb::object b) { lists_ = {std::move(a), std::move(b)}; }

    // Whether it is these lists that were begun, with these rules.
    [[nodiscard]] bool fits(const FieldList& a, const FieldList& b, const std::vector<ListRule>& rules,
                            const ChosenRules& chosen) const;
    [[nodiscard]] std::size_t size() const {
        return static_cast<std::size_t>(std::count(started_.begin(), started_.end(), 1));
    }
    [[nodiscard]] bool has_started(std::size_t at) const { return at < started_.size() && started_[at] != 0; }
    // What is found, without names; until finish() others may add to it, under this lock.
    ListResults& results() { return results_; }
    std::mutex& results_lock() { return results_lock_; }

    // After start(true), leaves the work to the devices: the arrays may change by later work of
    // their streams. False where anything would have to be looked at again: it is not left then.
    bool leave();
    [[nodiscard]] bool is_left() const { return is_left_; }
    [[nodiscard]] bool is_done() const { return !queue_ || queue_->is_done(); }
    // After finish(): raises where a pair that was left to a device has no result, as its arrays
    // may have changed.
    void check(std::size_t count) const;

    // Waits, and takes the results. Pairs that have none then are compared by themselves.
    void finish();
    void end();

   private:
    [[nodiscard]] const DifferenceRule& rule_of(DType dtype) const {
        return is_floating(scalar_type(dtype)) ? of_floating_ : of_others_;
    }

    // Called by the queue, maybe in its own thread, without Python's lock.
    void take(const FoundPairs& found);
    bool take_first(const DevicePair& pair, const ComparedElements& compared);

    // Of the number of a pair whose first place is one of rows.
    static constexpr std::size_t kInColumns = ~(~std::size_t{0} >> 1);

    DifferenceRule of_floating_, of_others_;
    CompareOptions options_;
    std::function<bool(std::uint64_t, std::uint64_t)> poll_;
    nb::object progress_;  // which poll_ calls
    std::array<nb::object, 2> lists_;
    std::size_t seen_ = 0;
    std::vector<std::uint8_t> started_;
    bool is_left_ = false;
    std::mutex results_lock_;
    ListResults results_{0};
    bool interrupted_ = false;
    std::optional<FieldResult> like_;  // of the pair before
    std::optional<Error> error_;
    std::optional<PairQueue> queue_;  // ends before what it uses
};

void define_started_pairs(nb::module_& m);

}  // namespace twinrun
