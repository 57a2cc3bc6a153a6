// Fields by the thousand, of arrays of the caller or of metadata: taken and compared with no work of Python for each.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/utf8.hpp"
#include "engine/batch.hpp"
#include "engine/listed_fields.hpp"
#include "engine/packed_layouts.hpp"
#include "engine/packed_results.hpp"
#include "history/field.hpp"
#include "history/history.hpp"
#include "listed_arrays.hpp"
#include "metadata/expected.hpp"
#include "shared.hpp"
#include "source/device_array.hpp"
#include "source/plain_files.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace twinrun {

namespace {

// Dictionaries that are nested deeper are walked in Python, which has its own limit.
constexpr int kDeepest = 64;

// Where the arrays were, without keeping them alive.
struct HeldArrays {
    std::vector<std::pair<nb::object, nb::object>> arrays;  // name, weak reference

    // None where one is gone.
    [[nodiscard]] nb::object there() const {
        nb::dict all;
        for (const auto& [name, reference] : arrays) {
            const nb::object array = reference();
            if (array.is_none()) return nb::none();
            all[name] = array;
        }
        return all;
    }
};

// An object that the core may release in any thread, when its work is done.
std::shared_ptr<const void> held_by_work(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* held) {
                const nb::gil_scoped_acquire locked;
                delete held;
            }};
}

// All fields of a place, taken at once.
class FieldList {
   public:
    // The arrays and numbers of a dictionary, nested or not. What is neither is given to flatten(name, value), which tells its
    // arrays by name; those that Python has to look at are in rest(). Nothing where that cannot be done, or where Python has to
    // look at all of them.
    static std::optional<FieldList> of_arrays(nb::handle container, const nb::object& flatten,
                                              bool on_devices) {
        if (!is_dictionary(container)) return std::nullopt;
        FieldList list;
        Walk walk{ArrayTaker(on_devices), flatten};
        if (!walk.taker.knows_any() || !list.walk(walk, container, nb::object(), 0)) return std::nullopt;
        std::unordered_set<std::string_view> names;
        names.reserve(list.fields_.size() + list.rest_.size());
        for (const TakenField& field : list.fields_) {
            if (!names.insert(field.text).second) return std::nullopt;
        }
        for (const Other& other : list.rest_) {
            if (!names.insert(other.text).second) return std::nullopt;
        }
        if (list.fields_.empty()) return std::nullopt;
        return list;
    }

    // The fields of metadata, with their data where it was kept; nothing where Python has to look at one: labels, particles, and
    // elements that must be decoded.
    static std::optional<FieldList> of_metadata(const PyMetadata& metadata, bool has_data) {
        FieldList list;
        if (!list.add_metadata(metadata.file, has_data)) return std::nullopt;
        return list;
    }

    // The same of many places of a history, one after another, each in its folder below `history`: fields belong to those at the
    // same place of the other list. Nothing also where a file is not the one of the journal, or does not fit its data.
    static std::optional<FieldList> of_history(const std::string& history,
                                               const std::vector<std::string>& folders,
                                               const std::vector<const RankFiles*>& files, int threads) {
        if (folders.size() != files.size()) raise({ErrorCode::invalid_argument, "a folder for each place"});
        std::vector<ExpectedMetadata> expected;
        std::size_t fields = 0;
        expected.reserve(files.size());
        for (std::size_t at = 0; at < files.size(); ++at) {
            const RankFiles& own = *files[at];
            if (own.difference != kNoBase || own.metadata.empty()) return std::nullopt;
            expected.push_back({joined_path(joined_path(history, folders[at]), own.metadata),
                                own.metadata_bytes, own.header_checksum, !own.data.empty()});
        }
        StreamOptions stream;
        stream.threads = threads;
        std::vector<std::shared_ptr<MetadataFile>> opened;
        {
            const nb::gil_scoped_release unlocked;
            opened = open_expected(expected, worker_count(stream));
        }
        for (const auto& file : opened) {
            if (file == nullptr) return std::nullopt;
            fields += file->directory().fields.size();
        }
        FieldList list;
        list.in_order_ = true;
        list.fields_.reserve(fields);
        for (std::size_t at = 0; at < files.size(); ++at) {
            for (const FieldMetadata& field : opened[at]->directory().fields) {
                if (!is_utf8(field.name)) return std::nullopt;
            }
            if (!list.add_metadata(opened[at], !files[at]->data.empty())) return std::nullopt;
        }
        return list;
    }

    // The fields of files that hold arrays as they lie in memory. names: of the fields of .npy files, and what stands before those
    // of .safetensors files. Nothing where Python has to look at one: the readers of formats know more, and say what is wrong.
    static std::optional<FieldList> of_files(const std::vector<std::string>& paths,
                                             const std::vector<std::string>& names, const std::string& format,
                                             bool without_metadata, bool unique, int threads) {
        const bool npy = format == "npy";
        if (!npy && format != "safetensors")
            raise({ErrorCode::invalid_argument, "format must be npy or safetensors"});
        if (names.size() != paths.size()) raise({ErrorCode::invalid_argument, "a name for each path"});
        FieldList list;
        std::vector<std::optional<PlainFile>> files;
        {
            const nb::gil_scoped_release unlocked;
            StreamOptions stream;
            stream.threads = threads;
            files = read_plain_files(paths, npy ? PlainFormat::npy : PlainFormat::safetensors,
                                     worker_count(stream), without_metadata ? kMetadataSuffix : "");
        }
        std::unordered_set<std::string_view> known;
        for (std::size_t at = 0; at < files.size(); ++at) {
            if (!files[at] || files[at]->arrays.empty()) return std::nullopt;
            for (PlainArray& array : files[at]->arrays) {
                list.names_.push_back(names[at] + array.name);
                TakenField field;
                field.text = list.names_.back();
                if (field.text.empty() || field.text.find('@') != std::string_view::npos) return std::nullopt;
                if (unique && !known.insert(field.text).second) return std::nullopt;
                field.dtype = array.dtype;
                field.byte_order = array.byte_order;
                field.fortran_order = array.fortran_order;
                field.items = array.items;
                field.shape = std::move(array.shape);
                field.in_file = true;
                if (array.items != 0) {
                    field.extents.push_back(
                        {static_cast<std::uint32_t>(at), array.offset, item_bytes(array.dtype), array.items});
                }
                list.fields_.push_back(std::move(field));
            }
            list.texts_.push_back({files[at]->has_texts, std::move(files[at]->texts)});
            if (files[at]->in_memory != nullptr) list.in_memory_.push_back(std::move(files[at]->in_memory));
        }
        list.places_.push_back({nullptr, true, paths, 0});
        list.in_order_ = !unique;
        if (list.fields_.empty()) return std::nullopt;
        return list;
    }
    // What the files say beside their arrays: of each a dictionary, or None where it says nothing.
    [[nodiscard]] nb::list texts() const {
        nb::list all;
        for (const auto& [has_texts, texts] : texts_) {
            if (!has_texts) {
                all.append(nb::none());
                continue;
            }
            nb::dict own;
            for (const auto& [word, text] : texts)
                own[nb::str(word.data(), word.size())] = nb::str(text.data(), text.size());
            all.append(own);
        }
        return all;
    }

    [[nodiscard]] const std::vector<TakenField>& fields() const { return fields_; }
    [[nodiscard]] ListedFiles files(const TakenField& field) const {
        if (places_.empty()) return {};
        const Place& place = places_[field.place];
        return {place.file.get(), place.has_data, place.paths};
    }
    [[nodiscard]] FilesInMemory in_memory() const { return in_memory_; }
    // Of each place of a history.
    [[nodiscard]] std::vector<std::size_t> counts() const {
        std::vector<std::size_t> found;
        for (const Place& place : places_)
            found.push_back(place.file == nullptr ? 0 : place.file->directory().fields.size());
        return found;
    }
    [[nodiscard]] std::vector<std::uint64_t> bytes_read() const {
        std::vector<std::uint64_t> found;
        for (const Place& place : places_)
            found.push_back(place.file == nullptr ? 0 : place.bytes_read);
        return found;
    }

    // An array or a text that Python has to look at, and its place among all fields.
    struct Other {
        std::size_t place;
        nb::object name, value;
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
    [[nodiscard]] CapturedFields captured(const std::map<std::string, std::pair<double, double>>& tolerances,
                                          const std::shared_ptr<const void>& owner) const {
        CapturedFields all;
        all.fields.reserve(fields_.size());
        for (const TakenField& field : fields_) {
            CapturedField f;
            f.name = field.text;
            f.dtype = field.dtype;
            f.shape = field.shape;
            f.order = field.fortran_order ? ArrayOrder::column_major : ArrayOrder::row_major;
            if (field.fortran_order)
                std::reverse(f.shape.begin(), f.shape.end());  // as the caller indexes them
            if (field.device == kHostMemory) {
                f.data = field.data;
            } else {
                f.device = array_of(field);
                f.device->ordered = true;
                f.device->owner = owner;
            }
            if (const auto own = tolerances.find(f.name); own != tolerances.end()) {
                f.own_tolerance = true;
                f.tolerance = {own->second.first, own->second.second};
            }
            all.fields.push_back(std::move(f));
        }
        return all;
    }

    // Nothing where some of them were made for this list.
    [[nodiscard]] std::optional<HeldArrays> held() const {
        if (made_) return std::nullopt;
        HeldArrays held;
        held.arrays.reserve(fields_.size());
        for (const TakenField& field : fields_) {
            PyObject* reference = PyWeakref_NewRef(field.owner.ptr(), nullptr);
            if (reference == nullptr) throw nb::python_error();
            held.arrays.emplace_back(field.name, nb::steal(reference));
        }
        return held;
    }

    // All of them, in their order.
    [[nodiscard]] nb::dict arrays() const {
        nb::dict all;
        auto other = rest_.begin();
        for (std::size_t at = 0; at <= fields_.size(); ++at) {
            for (; other != rest_.end() && PyDict_Size(all.ptr()) == static_cast<Py_ssize_t>(other->place);
                 ++other)
                all[other->name] = other->value;
            if (at < fields_.size()) all[fields_[at].name] = fields_[at].owner;
        }
        return all;
    }

   private:
    struct Walk {
        ArrayTaker taker;
        nb::object flatten;
    };
    // What the fields of a place share.
    struct Place {
        std::shared_ptr<MetadataFile> file;
        bool has_data = true;
        std::vector<std::string> paths;
        std::uint64_t bytes_read = 0;  // that opening the metadata took
    };

    // As os.path.join() does.
    static std::string joined_path(const std::string& folder, const std::string& name) {
        if (name.starts_with('/') || folder.empty()) return name;
        return folder.ends_with('/') ? folder + name : folder + '/' + name;
    }

    // False where Python has to look at a field.
    bool add_metadata(const std::shared_ptr<MetadataFile>& file, bool has_data) {
        Place place{file, has_data, {}, file->bytes_read()};
        for (std::uint32_t at = 0; at < file->directory().data_files.size(); ++at)
            place.paths.push_back(file->data_path(at));
        const Directory& directory = file->directory();
        if (directory.fields.empty()) return false;
        if (fields_.empty()) fields_.reserve(directory.fields.size());
        for (std::size_t number = 0; number < directory.fields.size(); ++number) {
            const FieldMetadata& own = directory.fields[number];
            if (own.name.find('@') != std::string::npos || !own.key.empty()) return false;
            if (own.extents.empty() && own.items() != 0 && has_data) return false;
            TakenField field;
            field.text = own.name;
            field.dtype = own.dtype;
            field.fortran_order = own.order == ArrayOrder::column_major;
            field.items = own.items();
            field.shape = own.shape;
            field.metadata = &own;
            field.number = number;
            field.place = places_.size();
            fields_.push_back(std::move(field));
        }
        places_.push_back(std::move(place));
        return true;
    }

    static bool is_dictionary(nb::handle value) {
        if (PyDict_CheckExact(value.ptr())) return true;
        if (!PyDict_Check(value.ptr())) return false;
        const nb::object collections = nb::steal(PyImport_GetModule(nb::str("collections").ptr()));
        if (!collections.is_valid()) return false;
        return reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) == collections.attr("OrderedDict").ptr();
    }

    // Python's own walk says what is wrong where this one gives up.
    bool walk(Walk& with, nb::handle dict, const nb::object& prefix, int depth) {
        if (depth > kDeepest) return false;
        // In the order of an OrderedDict, which a plain walk does not know.
        const nb::object items = nb::steal(PyMapping_Items(dict.ptr()));
        if (!items.is_valid()) throw nb::python_error();
        for (const nb::handle item : nb::borrow<nb::list>(items)) {
            const nb::handle value = PyTuple_GetItem(item.ptr(), 1);
            nb::object name = name_of(PyTuple_GetItem(item.ptr(), 0));
            if (!name.is_valid()) return false;
            if (prefix.is_valid()) {
                name = nb::steal(PyUnicode_FromFormat("%U.%U", prefix.ptr(), name.ptr()));
                if (!name.is_valid()) throw nb::python_error();
            }
            if (is_dictionary(value) && PyObject_Size(value.ptr()) > 0) {
                if (!walk(with, value, name, depth + 1)) return false;
            } else if (!add(with, name, value) && !add_parts(with, name, value)) {
                return false;
            }
        }
        return true;
    }

    // A number or an array, if the core can take it.
    bool add(Walk& with, const nb::object& name, nb::handle value) {
        auto field = number(value);
        if (!field) field = with.taker.take(value);
        if (!field) return false;
        const auto text = utf8(name);
        if (!text) return false;
        field->name = name;
        field->text = *text;
        fields_.push_back(std::move(*field));
        return true;
    }

    // What Python makes of any other value.
    bool add_parts(Walk& with, const nb::object& name, nb::handle value) {
        const nb::object parts =
            nb::steal(PyObject_CallFunctionObjArgs(with.flatten.ptr(), name.ptr(), value.ptr(), nullptr));
        if (!parts.is_valid()) {
            if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();  // an interrupt
            PyErr_Clear();
            return false;
        }
        made_ = true;
        const nb::dict all = nb::borrow<nb::dict>(parts);
        bool has_labels = false;  // labels stay beside their arrays
        for (const auto [key, part] : all) {
            const auto text = utf8(key);
            if (!text) return false;
            has_labels = has_labels || text->find('@') != std::string_view::npos;
        }
        for (const auto [key, part] : all) {
            const nb::object own = nb::borrow(key);
            if (!has_labels && add(with, own, part)) continue;
            rest_.push_back({fields_.size() + rest_.size(), own, nb::borrow(part), *utf8(key)});
        }
        return true;
    }

    // Of a str, as long as that lives.
    static std::optional<std::string_view> utf8(nb::handle text) {
        Py_ssize_t length = 0;
        const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
        if (bytes == nullptr) {
            PyErr_Clear();
            return std::nullopt;
        }
        return std::string_view(bytes, static_cast<std::size_t>(length));
    }

    // A number of Python's, as numpy converts it.
    std::optional<TakenField> number(nb::handle value) {
        TakenField field;
        field.items = 1;
        std::uint64_t bits = 0;
        if (PyFloat_CheckExact(value.ptr())) {
            const double own = PyFloat_AsDouble(value.ptr());
            std::memcpy(&bits, &own, sizeof own);
            field.dtype = DType::f64;
        } else if (PyBool_Check(value.ptr())) {
            const unsigned char own = value.ptr() == Py_True ? 1 : 0;
            std::memcpy(&bits, &own, sizeof own);
            field.dtype = DType::boolean;
        } else if (PyLong_CheckExact(value.ptr())) {
            int beyond = 0;
            const long long own = PyLong_AsLongLongAndOverflow(value.ptr(), &beyond);
            if (beyond != 0) return std::nullopt;
            std::memcpy(&bits, &own, sizeof own);
            field.dtype = DType::i64;
        } else {
            return std::nullopt;
        }
        numbers_.push_back(bits);
        field.data = &numbers_.back();
        field.owner = nb::borrow(value);
        made_ = true;  // no weak reference leads to it
        return field;
    }

    // A key's part of a name; invalid where Python has to look at it: labels, empty names, other types.
    static nb::object name_of(nb::handle key) {
        nb::object name;
        if (PyUnicode_CheckExact(key.ptr())) {
            name = nb::borrow(key);
        } else if (PyLong_CheckExact(key.ptr())) {
            name = nb::steal(PyObject_Str(key.ptr()));
        } else {
            return {};
        }
        const Py_ssize_t length = PyUnicode_GetLength(name.ptr());
        if (length <= 0) return {};
        const Py_ssize_t label = PyUnicode_FindChar(name.ptr(), '@', 0, length, 1);
        if (label != -1) return {};
        return name;
    }

    std::vector<TakenField> fields_;
    std::vector<Other> rest_;
    std::deque<std::uint64_t> numbers_;  // addresses stay
    std::deque<std::string> names_;      // of fields of files; addresses stay
    struct Texts {
        bool there = false;
        std::vector<std::pair<std::string, std::string>> texts;
    };
    std::vector<Texts> texts_;  // of files
    bool made_ = false;         // not all are arrays that the caller keeps
    std::deque<Place> places_;  // addresses stay; of arrays none
    std::vector<std::shared_ptr<InputFile>> in_memory_;
    bool in_order_ = false;
};

// The results of all fields, in the order of the first run.
class ListResults {
   public:
    explicit ListResults(std::size_t count) : results_(count), failed_(count) {}

    // In the order of fields. names_of_files: names are bytes of files, not texts of Python.
    void describe(const NamedLayout& layout, bool names_of_files) {
        layouts_.add(layout);
        names_of_files_ = names_of_files;
    }
    // Called as compare_fields() calls it.
    void take(std::size_t at, const Result<FieldResult>& result) {
        if (!result) {
            failed_[at] = true;
            if (result.error().code == ErrorCode::interrupted) interrupted_ = true;
            return;
        }
        const FieldResult& r = *result;
        results_.put(at, r);
        bytes_read_ += r.tree.bytes_read + r.sketch.bytes_read + r.elements.bytes_read;
        bytes_ += r.scalars / scalars_per_item(layouts_.get(at).dtype) * item_bytes(layouts_.get(at).dtype);
        if (!r.same()) different_.push_back(at);
    }
    // When all were taken. interrupt: the exception that came meanwhile, if there was one.
    void finish(nb::object interrupt) {
        if (interrupted_ && !interrupt.is_valid()) raise({ErrorCode::interrupted, "interrupted"});
        interrupt_ = std::move(interrupt);
        std::sort(different_.begin(), different_.end());
    }
    // To be raised; None where nobody interrupted it. Gives it away: it would keep alive what it came through.
    [[nodiscard]] nb::object take_interrupt() {
        return interrupt_.is_valid() ? std::exchange(interrupt_, nb::object()) : nb::none();
    }

    // Those of the fields [first, last), none of which failed.
    [[nodiscard]] ListResults part(std::size_t first, std::size_t last) const {
        if (first > last || last > size()) throw nb::index_error();
        ListResults some(last - first);
        for (std::size_t at = first; at < last; ++at) {
            if (!results_.has(at)) throw nb::index_error();
            some.describe(layouts_.get(at), names_of_files_);
        }
        for (std::size_t at = first; at < last; ++at)
            some.take(at - first, results_.get(at));
        return some;
    }

    [[nodiscard]] std::size_t size() const { return results_.size(); }
    [[nodiscard]] const std::vector<std::size_t>& different() const { return different_; }
    [[nodiscard]] std::vector<std::size_t> failed() const {
        std::vector<std::size_t> found;
        for (std::size_t at = 0; at < failed_.size(); ++at) {
            if (failed_[at]) found.push_back(at);
        }
        return found;
    }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }
    [[nodiscard]] PyFieldResult at(std::size_t at) const {
        const DType dtype = layout(at).dtype;
        if (!results_.has(at)) throw nb::index_error();
        return {results_.get(at), dtype};
    }
    [[nodiscard]] NamedLayout layout(std::size_t at) const {
        if (at >= layouts_.size()) throw nb::index_error();
        return layouts_.get(at);
    }
    [[nodiscard]] nb::object name(std::size_t at) const {
        const std::string_view text = layout(at).name;
        if (names_of_files_) return file_text(std::string(text));
        return nb::str(text.data(), text.size());
    }

    using State = std::tuple<nb::bytes, nb::bytes, std::vector<std::size_t>, std::vector<std::size_t>,
                             std::uint64_t, std::uint64_t, bool>;
    [[nodiscard]] State state() const {
        const auto results = results_.bytes();
        const auto layouts = layouts_.bytes();
        return {nb::bytes(results.data(), results.size()),
                nb::bytes(layouts.data(), layouts.size()),
                different_,
                failed(),
                bytes_,
                bytes_read_,
                names_of_files_};
    }
    static ListResults of(const State& state) {
        const auto bytes = [](const nb::bytes& b) {
            return std::span(static_cast<const std::byte*>(b.data()), b.size());
        };
        const auto& [results, layouts, different, failed, all_bytes, bytes_read, names_of_files] = state;
        ListResults made(0);
        made.results_ = twinrun::take(PackedResults::from(bytes(results)));
        made.layouts_ = twinrun::take(PackedLayouts::from(bytes(layouts)));
        made.failed_.resize(made.results_.size());
        const auto known = [&](std::size_t at) { return at < made.size(); };
        if (made.layouts_.size() != made.size() || !std::ranges::all_of(different, known) ||
            !std::ranges::all_of(failed, known))
            raise({ErrorCode::damaged, "these are not the results of a comparison"});
        for (const std::size_t at : failed)
            made.failed_[at] = true;
        made.different_ = different;
        made.bytes_ = all_bytes;
        made.bytes_read_ = bytes_read;
        made.names_of_files_ = names_of_files;
        return made;
    }

   private:
    PackedResults results_;
    PackedLayouts layouts_;
    std::vector<bool> failed_;
    std::vector<std::size_t> different_;
    std::uint64_t bytes_ = 0;
    std::uint64_t bytes_read_ = 0;
    bool names_of_files_ = false;
    bool interrupted_ = false;
    nb::object interrupt_;
};

// How fields are compared that a rule is for.
struct ListRule {
    DifferenceRule rule;
    bool own_tolerance = false;  // that of the metadata counts
};

bool order_matters(const std::vector<std::uint64_t>& shape) {
    return std::count_if(shape.begin(), shape.end(), [](std::uint64_t n) { return n > 1; }) > 1;
}

void run_list(std::span<const FieldPair> pairs, const CompareOptions& options, ListResults& results) {
    const auto run = [&] {
        const nb::gil_scoped_release unlocked;
        compare_fields(pairs, options,
                       [&](std::size_t at, const Result<FieldResult>& result) { results.take(at, result); });
    };
    run();
    // An interrupt may come when all is done: nobody was stopped by it then.
    nb::object interrupt;
    if (PyErr_Occurred() != nullptr) interrupt = nb::borrow(nb::python_error().value());
    results.finish(std::move(interrupt));
}

// chosen: of each field of a the number of its rule, kLeftOut for none.
constexpr int kLeftOut = -1;

std::optional<ListResults> compare_lists(const FieldList& a, const FieldList& b,
                                         const std::vector<ListRule>& rules, const std::vector<int>& chosen,
                                         const PyCompareOptions& how) {
    if (a.in_order() != b.in_order()) return std::nullopt;
    const auto of_b = matched(std::span<const TakenField>(a.fields()), std::span(b.fields()), a.in_order());
    if (!of_b) return std::nullopt;
    const CompareOptions& options = how.options;
    if (chosen.size() != a.fields().size())
        raise({ErrorCode::invalid_argument, "a rule or none for each field"});
    const auto count = static_cast<std::size_t>(
        std::count_if(chosen.begin(), chosen.end(), [](int rule) { return rule != kLeftOut; }));
    ListSources sources(count * 2, options.cache);
    sources.take_from(a.in_memory());
    sources.take_from(b.in_memory());
    std::vector<FieldPair> pairs(count);
    ListResults results(count);
    for (std::size_t i = 0, at = 0; i < a.fields().size(); ++i) {
        if (chosen[i] == kLeftOut) continue;
        const ListRule& rule = rules.at(static_cast<std::size_t>(chosen[i]));
        const TakenField& field = a.fields()[i];
        FieldPair& pair = pairs[at++];
        const TakenField& other = b.fields()[(*of_b)[i]];
        pair.a = sources.side(a.files(field), field);
        pair.b = sources.side(b.files(other), other);
        pair.rule = rule.rule;
        if (field.metadata != nullptr && rule.own_tolerance) {
            const Tolerance& own = field.metadata->settings.tolerance;
            const Tolerance& theirs = other.metadata->settings.tolerance;
            if (own.atol != theirs.atol || own.rtol != theirs.rtol) return std::nullopt;
            pair.rule.tolerance = own;
        }
        if (field.fortran_order && order_matters(field.shape)) pair.columns = field.shape;
        results.describe({field.text, field.dtype, field.fortran_order, field.shape,
                          static_cast<std::uint64_t>(chosen[i]), pair.rule.tolerance},
                         field.metadata != nullptr);
    }
    run_list(pairs, options, results);
    return results;
}

// Pairs of fields that Python opened and matched.
class PairList {
   public:
    void add(nb::str name, const std::string& dtype, std::vector<std::uint64_t> shape, bool fortran_order,
             const Source* a, const PyMetadata* a_metadata, std::size_t a_field, const Source* b,
             const PyMetadata* b_metadata, std::size_t b_field, std::size_t rule) {
        FieldPair pair;
        pair.a = side(a, a_metadata, a_field);
        pair.b = side(b, b_metadata, b_field);
        if (fortran_order && order_matters(shape)) pair.columns = shape;
        pairs_.push_back(std::move(pair));
        fields_.push_back({std::move(name), parse_dtype(dtype), fortran_order, std::move(shape), rule});
    }

    ListResults compare(const std::vector<ListRule>& rules, const PyCompareOptions& how) {
        ListResults results(pairs_.size());
        for (std::size_t at = 0; at < pairs_.size(); ++at) {
            const Field& field = fields_[at];
            pairs_[at].rule = rules.at(field.rule).rule;
            Py_ssize_t length = 0;
            const char* name = PyUnicode_AsUTF8AndSize(field.name.ptr(), &length);
            if (name == nullptr) throw nb::python_error();
            results.describe({{name, static_cast<std::size_t>(length)},
                              field.dtype,
                              field.fortran_order,
                              field.shape,
                              field.rule,
                              pairs_[at].rule.tolerance},
                             false);
        }
        run_list(pairs_, how.options, results);
        return results;
    }
    [[nodiscard]] std::size_t size() const { return pairs_.size(); }

   private:
    struct Field {
        nb::str name;
        DType dtype;
        bool fortran_order;
        std::vector<std::uint64_t> shape;
        std::size_t rule;
    };

    FieldSide side(const Source* source, const PyMetadata* metadata, std::size_t field) {
        FieldSide made;
        if (source != nullptr) {
            made.elements = source->elements.get();
            held_.push_back(*source);
        }
        if (metadata != nullptr) {
            if (field >= metadata->file->directory().fields.size())
                raise({ErrorCode::invalid_argument, "no such field in the metadata"});
            made.metadata = metadata->file.get();
            if (metadata_.empty() || metadata_.back() != metadata->file) metadata_.push_back(metadata->file);
        }
        made.field = field;
        return made;
    }

    std::vector<FieldPair> pairs_;
    std::vector<Field> fields_;
    std::vector<Source> held_;
    std::vector<std::shared_ptr<MetadataFile>> metadata_;
};

}  // namespace

void define_field_lists(nb::module_& m) {
    nb::class_<FieldList>(m, "FieldList", "All fields of a place, taken at once.")
        .def_static(
            "of_arrays", &FieldList::of_arrays, "container"_a.none(), "flatten"_a, "on_devices"_a,
            nb::sig("def of_arrays(container: object, flatten: Callable[[str, object], dict[str, object]], "
                    "on_devices: bool) -> FieldList | None"),
            "The arrays and numbers of a dictionary, nested or not. flatten(name, value) gives the arrays of "
            "any other value by name. on_devices: those on GPUs, too, with PyTorch's current stream. None "
            "where the container is not for a list: see runs.containers.")
        .def_static("of_metadata", &FieldList::of_metadata, "metadata"_a, "has_data"_a,
                    "The fields of metadata, and their data. None where Python has to look at one of them.")
        .def_static("of_history", &FieldList::of_history, "history"_a, "folders"_a, "files"_a,
                    "threads"_a = 0,
                    "The fields of metadata of many places of a history, place after place, and their data. "
                    "They belong to "
                    "those at the same place of another list. None where Python has to look at one of them.")
        .def_prop_ro("counts", &FieldList::counts, "How many fields each place of a history has.")
        .def_prop_ro("bytes_read", &FieldList::bytes_read, "Of each place: what opening its metadata read.")
        .def_static(
            "of_files", &FieldList::of_files, "paths"_a, "names"_a, "format"_a, "without_metadata"_a = true,
            "unique"_a = true, "threads"_a = 0,
            "The arrays of .npy or .safetensors files as they lie there. names: of the array of each "
            ".npy file, what stands before the names of a .safetensors file. None where Python has to "
            "look at one of them, or, without_metadata, where there is metadata beside it. "
            "unique: where a name is there twice; else fields belong to those at the same place.")
        .def_prop_ro("texts", &FieldList::texts,
                     nb::for_getter(nb::sig("def texts(self, /) -> list[dict[str, str] | None]")),
                     "Of each file its texts beside the arrays, None where it has none.")
        .def("arrays", &FieldList::arrays, nb::sig("def arrays(self) -> dict[str, object]"),
             "The arrays by name.")
        .def_prop_ro(
            "rest",
            [](const FieldList& self) {
                nb::dict all;
                for (const auto& other : self.rest())
                    all[other.name] = other.value;
                return all;
            },
            nb::sig("def rest(self) -> dict[str, object]"),
            "The arrays by name that are not in the list, as Python has to look at them.")
        .def_prop_ro(
            "rest_places",
            [](const FieldList& self) {
                std::vector<std::size_t> places;
                for (const auto& other : self.rest())
                    places.push_back(other.place);
                return places;
            },
            "Their numbers among all fields.")
        .def(
            "captured",
            [](nb::object self, const std::map<std::string, std::pair<double, double>>& tolerances) {
                return nb::cast<const FieldList&>(self).captured(tolerances, held_by_work(self));
            },
            "tolerances"_a,
            "The fields of the list, as they are captured and sketched; they are valid as long as it is. "
            "tolerances: of fields that have one of their own.")
        .def_prop_ro("any_on_device", &FieldList::any_on_device)
        .def_prop_ro(
            "floating",
            [](const FieldList& self) {
                std::vector<bool> found;
                for (const TakenField& field : self.fields())
                    found.push_back(is_floating(scalar_type(field.dtype)));
                return found;
            },
            "Whether each holds floating-point numbers.")
        .def_prop_ro("names",
                     [](const FieldList& self) {
                         nb::list found;
                         for (const TakenField& field : self.fields()) {
                             if (field.name.is_valid()) {
                                 found.append(field.name);
                             } else if (field.in_file) {
                                 found.append(nb::str(field.text.data(), field.text.size()));
                             } else {
                                 found.append(file_text(std::string(field.text)));
                             }
                         }
                         return nb::typed<nb::list, nb::str>(found);
                     })
        .def("held", &FieldList::held,
             "Where the arrays are, without keeping them alive. None where some are not the caller's own.")
        .def("__len__", [](const FieldList& self) { return self.fields().size(); });
    nb::class_<HeldArrays>(m, "HeldArrays", "Arrays that others keep alive.")
        .def("there", &HeldArrays::there, nb::sig("def there(self) -> dict[str, object] | None"),
             "The arrays by name; None where one is gone.")
        .def(
            "__deepcopy__", [](nb::object self, nb::handle) { return self; },
            nb::sig("def __deepcopy__(self, memo: object) -> HeldArrays"));
    nb::class_<ListResults> results(m, "ListResults", "What comparing two lists found, field by field.");
    const auto add = [&](const char* name, auto get) {
        results.def(
            name, [get](const ListResults& self, std::size_t at) { return get(self.layout(at)); }, "at"_a);
    };
    using L = NamedLayout;
    results.def("__len__", &ListResults::size)
        .def("result", &ListResults::at, "at"_a)
        .def("name", &ListResults::name, "at"_a, nb::sig("def name(self, at: int) -> str"));
    add("dtype", [](const L& l) { return std::string(dtype_name(l.dtype)); });
    add("shape", [](const L& l) { return shape_tuple({l.shape.begin(), l.shape.end()}); });
    add("fortran_order", [](const L& l) { return l.fortran_order; });
    add("rule", [](const L& l) { return l.rule; });
    add("atol", [](const L& l) { return l.tolerance.atol; });
    add("rtol", [](const L& l) { return l.tolerance.rtol; });
    results.def_prop_ro("different", &ListResults::different, "Numbers of the fields that differ, ascending.")
        .def_prop_ro("failed", &ListResults::failed,
                     "Numbers of the fields that could not be compared: comparing each alone says why.")
        .def("take_interrupt", &ListResults::take_interrupt,
             nb::sig("def take_interrupt(self) -> BaseException | None"),
             "The exception that ended the work, to be raised. The fields that were not reached failed.")
        .def("part", &ListResults::part, "first"_a, "last"_a, "Those of the fields [first, last).")
        .def_prop_ro("bytes", &ListResults::bytes, "Of one run.")
        .def_prop_ro("bytes_read", &ListResults::bytes_read)
        .def("__getstate__", &ListResults::state)
        .def("__setstate__", [](ListResults& self, const ListResults::State& state) {
            new (&self) ListResults(ListResults::of(state));
        });
    nb::class_<ListRule>(m, "ListRule", "The rule of fields of a list.")
        .def(nb::init<DifferenceRule, bool>(), "rule"_a, "own_tolerance"_a = false,
             "own_tolerance: that of the metadata counts.");
    m.def(
        "are_npy",
        [](const std::vector<nb::bytes>& paths) {
            std::vector<std::string> names;
            names.reserve(paths.size());
            for (const nb::bytes& path : paths)
                names.emplace_back(path.c_str(), path.size());
            StreamOptions every_core;
            std::vector<char> found;
            {
                const nb::gil_scoped_release unlocked;
                found = are_npy(names, worker_count(every_core));
            }
            return std::vector<bool>(found.begin(), found.end());
        },
        "paths"_a, "Whether each of these files begins as .npy files do.");
    m.def(
        "compare_lists", &compare_lists, "a"_a, "b"_a, "rules"_a, "chosen"_a, "options"_a,
        "chosen: of each field of a the number of its rule, -1: it is left out. None where the lists do not "
        "match in names, types and shapes: Python then says why.");
    nb::class_<PairList>(m, "PairList", "Pairs of fields, which the core compares at once.")
        .def(nb::init<>())
        .def("add", &PairList::add, "name"_a, "dtype"_a, "shape"_a, "fortran_order"_a, "a"_a.none(),
             "a_metadata"_a.none(), "a_field"_a, "b"_a.none(), "b_metadata"_a.none(), "b_field"_a, "rule"_a,
             "The sources are this pair's alone. rule: its number.")
        .def("__len__", &PairList::size)
        .def("compare", &PairList::compare, "rules"_a, "options"_a);
}

}  // namespace twinrun
