// The fields of a place, taken at once: arrays of the caller, metadata, or files.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/reused_vector.hpp"
#include "engine/listed_fields.hpp"
#include "history/history.hpp"
#include "listed_arrays.hpp"
#include "shared.hpp"

namespace twinrun {

// Where the arrays were, without keeping them alive. Lists of the same arrays share it: see
// FieldList::held().
struct HeldArrays {
    struct Array {
        nanobind::object name;
        nanobind::object value;  // a weak reference; of numbers themselves
        bool is_number = false;

        // Null where it is gone.
        [[nodiscard]] nanobind::handle there() const;
    };
    std::shared_ptr<const std::vector<Array>> arrays;

    // None where one is gone.
    [[nodiscard]] nanobind::object there() const;
};

// An object that the core may release in any thread, when its work is done.
std::shared_ptr<const void> held_by_work(nanobind::object object);

// An array of a list as it is captured and sketched. tolerances: of fields that have one of their
// own. owner: keeps the array, for work that goes on.
CapturedField captured_field(const TakenField& field, const std::map<std::string, Tolerance>& tolerances,
                             const std::shared_ptr<const void>& owner);

// All fields of a place, taken at once.
class FieldList {
   public:
    // The arrays and numbers of a dictionary or a list, nested or not. What is neither is given to
    // flatten(name, value), which tells its arrays by name; those that Python has to look at are in
    // rest(). Nothing where that cannot be done, or where Python has to look at all of them.
    static std::optional<FieldList> of_arrays(nanobind::handle container, const nanobind::object& flatten,
                                              bool on_devices);
    // The fields of metadata, with their data where it was kept; nothing where Python has to look
    // at one.
    static std::optional<FieldList> of_metadata(const PyMetadata& metadata, bool has_data);
    // The same of many places of a history, one after another, each in its folder below `history`:
    // fields belong to those at the same place of the other list. Nothing also where a file is not
    // the one of the journal, or does not fit its data.
    static std::optional<FieldList> of_history(const std::string& history,
                                               const std::vector<std::string>& folders,
                                               const std::vector<const RankFiles*>& files, int threads);
    // The fields of files that hold arrays as they lie in memory. names: of the fields of .npy
    // files, and what stands before those of .safetensors files. Nothing where Python has to look
    // at one: the readers of formats know more, and say what is wrong.
    static std::optional<FieldList> of_files(const std::vector<std::string>& paths,
                                             const std::vector<std::string>& names, const std::string& format,
                                             bool without_metadata, bool unique, FilesAtHand* at_hand,
                                             int threads);

    // What the files say beside their arrays: of each a dictionary, or None where it says nothing.
    [[nodiscard]] nanobind::list texts() const;

    [[nodiscard]] const std::vector<TakenField>& fields() const { return *fields_; }
    // All of them; the list is not used afterwards.
    [[nodiscard]] std::vector<TakenField> take_fields() { return std::move(*fields_); }
    [[nodiscard]] ListedFiles files(const TakenField& field) const {
        if (places_.empty()) return {};
        const Place& place = places_[field.place];
        return {place.file.get(), place.has_data, place.paths};
    }
    [[nodiscard]] FilesInMemory in_memory() const { return in_memory_; }
    // Of each place of a history: how many fields it has, and what opening its metadata read.
    [[nodiscard]] std::vector<std::size_t> counts() const;
    [[nodiscard]] std::vector<std::uint64_t> bytes_read() const;

    // An array or a text that Python has to look at, and its place among all fields.
    struct Other {
        std::size_t place;
        nanobind::object name, value;
        std::string_view text;
    };
    [[nodiscard]] const std::vector<Other>& rest() const { return rest_; }
    // Fields belong to those at the same place of another list: names may be there several times.
    [[nodiscard]] bool in_order() const { return in_order_; }
    [[nodiscard]] bool any_on_device() const;

    // As they are captured and sketched. tolerances: of fields that have one of their own.
    // owner: this object, for work that goes on.
    [[nodiscard]] CapturedFields captured(const std::map<std::string, Tolerance>& tolerances,
                                          const std::shared_ptr<const void>& owner) const;

    // Nothing where some of them were made for this list. Of the last lists it is remembered: weak
    // references to thousands of arrays take long to make, and longer from Python's collector of
    // garbage.
    [[nodiscard]] std::optional<HeldArrays> held() const;
    // All of them, in their order.
    [[nodiscard]] nanobind::dict arrays() const;

   private:
    friend class ArrayWalk;

    // What the fields of a place share.
    struct Place {
        std::shared_ptr<MetadataFile> file;
        bool has_data = true;
        std::vector<std::string> paths;
        std::uint64_t bytes_read = 0;  // that opening the metadata took
    };

    // Of the place that is added next.
    void take(std::vector<ListedField> fields);
    // False where Python has to look at a field.
    bool add_metadata(const std::shared_ptr<MetadataFile>& file, bool has_data);

    ReusedVector<TakenField> fields_;
    std::vector<Other> rest_;
    std::deque<std::uint64_t> numbers_;        // addresses stay
    std::deque<std::string> names_;            // of fields of files; addresses stay
    std::vector<FieldsOfFiles::Texts> texts_;  // of files
    bool made_ = false;                        // not all are arrays that the caller keeps
    std::deque<Place> places_;                 // addresses stay; of arrays none
    std::vector<std::shared_ptr<InputFile>> in_memory_;
    bool in_order_ = false;
};

// Takes the arrays of a dictionary or a list one after another, so that work on the first ones can
// begin before the last one is looked at.
class ArrayWalk {
   public:
    ArrayWalk(nanobind::handle container, nanobind::object flatten, bool on_devices);

    // Goes on until at least one more field is in the list, or among its rest. False: there is
    // none, or Python has to look at the container.
    bool next();
    // What was taken until now; its fields move in memory while the walk goes on.
    [[nodiscard]] const FieldList& list() const { return list_; }
    // After the last one. Nothing as of FieldList::of_arrays().
    std::optional<FieldList> finish();

   private:
    // A dictionary or a list that is walked.
    struct Level {
        nanobind::object container;
        // Iterator, where a plain walk does not know the order; else invalid.
        nanobind::object keys;
        Py_ssize_t position = 0;  // of a plain walk
        // The same of entries that are prefetched: their objects, and what those refer to.
        Py_ssize_t objects = 0;
        Py_ssize_t tensors = 0;
        Py_ssize_t left = 0;      // entries that should follow
        nanobind::object prefix;  // of names, with its dot; invalid: none
    };
    [[nodiscard]] bool is_plain_dictionary(nanobind::handle value) const;
    [[nodiscard]] bool is_dictionary(nanobind::handle value) const;
    // Whether a list, or a tuple, is a container of arrays: one of numbers is an array itself.
    [[nodiscard]] bool is_list_of_arrays(nanobind::handle value, int depth = 0) const;
    [[nodiscard]] bool is_walked(nanobind::handle value) const;
    void look_ahead(Level& level) const;
    bool enter(nanobind::handle container, nanobind::object prefix);
    bool take(nanobind::handle key, nanobind::object value);
    bool add(const nanobind::object& name, nanobind::handle value);
    bool add_parts(const nanobind::object& name, nanobind::handle value);
    bool take_number(nanobind::handle value, TakenField& field);

    nanobind::object flatten_;
    nanobind::object ordered_;  // collections.OrderedDict, if anybody has imported it
    ArrayTaker taker_;
    FieldList list_;
    std::vector<Level> levels_;
    bool failed_ = false;
    bool may_repeat_ = false;  // names may be there twice
};

}  // namespace twinrun
