// All fields of a place, taken at once, and what comparing two such lists found.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/listed_fields.hpp"
#include "listed_arrays.hpp"
#include "shared.hpp"

namespace twinrun {

// Where the arrays were, without keeping them alive.
struct HeldArrays {
    std::vector<std::pair<nanobind::object, nanobind::object>> arrays;  // name, weak reference

    // None where one is gone.
    [[nodiscard]] nanobind::object there() const;
};

class FieldList {
   public:
    // The arrays and numbers of a dictionary, nested or not. What is neither is given to flatten(name, value), which tells its
    // arrays by name; those that Python has to look at are in rest(). Nothing where that cannot be done, or where Python has to
    // look at all of them.
    static std::optional<FieldList> of_arrays(nanobind::handle container, const nanobind::object& flatten,
                                              bool on_devices);
    // The fields of metadata, with their data where it was kept; nothing where Python has to look at one.
    static std::optional<FieldList> of_metadata(const PyMetadata& metadata, bool has_data);
    // The fields of files that hold arrays as they lie in memory. names: of the fields of .npy files, and what stands before those
    // of .safetensors files. Nothing where Python has to look at one: the readers of formats know more, and say what is wrong.
    static std::optional<FieldList> of_files(const std::vector<std::string>& paths,
                                             const std::vector<std::string>& names, const std::string& format,
                                             bool without_metadata, bool unique, int threads);

    // What the files say beside their arrays: of each a dictionary, or None where it says nothing.
    [[nodiscard]] nanobind::list texts() const;
    [[nodiscard]] const std::vector<TakenField>& fields() const { return fields_; }
    [[nodiscard]] ListedFiles files() const { return {file_.get(), has_data_, paths_}; }

    // An array or a text that Python has to look at, and its place among all fields.
    struct Other {
        std::size_t place;
        nanobind::object name, value;
        std::string_view text;
    };
    [[nodiscard]] const std::vector<Other>& rest() const { return rest_; }
    // Fields belong to those at the same place of another list: names may be there several times.
    [[nodiscard]] bool in_order() const { return in_order_; }
    [[nodiscard]] bool any_on_device() const {
        return std::any_of(fields_.begin(), fields_.end(),
                           [](const TakenField& field) { return field.device != kHostMemory; });
    }

    // As they are captured and sketched. tolerances: of fields that have one of their own.
    // owner: this object, for work that goes on.
    [[nodiscard]] CapturedFields captured(const std::map<std::string, Tolerance>& tolerances,
                                          const std::shared_ptr<const void>& owner) const;
    // Nothing where some of them were made for this list.
    [[nodiscard]] std::optional<HeldArrays> held() const;
    // All of them, in their order.
    [[nodiscard]] nanobind::dict arrays() const;

   private:
    struct Walk {
        ArrayTaker taker;
        nanobind::object flatten;
    };

    bool walk(Walk& with, nanobind::handle dict, const nanobind::object& prefix, int depth);
    bool add(Walk& with, const nanobind::object& name, nanobind::handle value);
    bool add_parts(Walk& with, const nanobind::object& name, nanobind::handle value);
    std::optional<TakenField> number(nanobind::handle value);
    void take(std::vector<ListedField> fields);

    std::vector<TakenField> fields_;
    std::vector<Other> rest_;
    std::deque<std::uint64_t> numbers_;        // addresses stay
    std::deque<std::string> names_;            // of fields of files; addresses stay
    std::vector<FieldsOfFiles::Texts> texts_;  // of files
    bool made_ = false;                        // not all are arrays that the caller keeps
    std::shared_ptr<MetadataFile> file_;
    bool has_data_ = true;
    bool in_order_ = false;
    std::vector<std::string> paths_;
};

}  // namespace twinrun
