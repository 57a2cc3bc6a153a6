// What is known of states whose arrays were sketched before. Callers hold Python's lock.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "field_list.hpp"
#include "history/field.hpp"
#include "sketch/sketch_stream.hpp"

namespace twinrun {

// How the arrays of a state are sketched.
struct SketchSettings {
    HistorySettings history;
    std::map<std::string, Tolerance> tolerances;  // of fields that have one of their own
    bool operator==(const SketchSettings&) const = default;
};

// Sketches of a device that are made together.
struct PlannedOnDevice {
    int device;
    SketchStream::Planned planned;  // by the numbers of the state's fields, ascending
};

// Which arrays a state had, and how their sketches were made. It keeps no array.
class SketchedState {
   public:
    // planned: of all groups that were started.
    SketchedState(SketchSettings settings, std::vector<TakenField> fields,
                  std::vector<PlannedOnDevice> planned);

    [[nodiscard]] std::size_t size() const { return fields_.size(); }
    [[nodiscard]] const SketchSettings& settings() const { return settings_; }
    // Whether the field of this number is the same array as then.
    [[nodiscard]] bool is(std::size_t number, const TakenField& field) const;
    // Whether a plan takes the field.
    [[nodiscard]] bool is_planned(std::size_t number) const { return is_planned_[number]; }
    // In the order of their last fields.
    [[nodiscard]] const std::vector<PlannedOnDevice>& planned() const { return planned_; }

   private:
    SketchSettings settings_;
    std::vector<TakenField> fields_;
    std::vector<bool> is_planned_;
    std::vector<PlannedOnDevice> planned_;
};

// The newest state that was sketched so and whose first field is this one; null: there is none.
std::shared_ptr<const SketchedState> find_sketched(const SketchSettings& settings, const TakenField& first);
// For later calls. The oldest ones go.
void keep_sketched(std::shared_ptr<const SketchedState> state);

}  // namespace twinrun
