#include "field_list.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/utf8.hpp"
#include "history/field.hpp"
#include "metadata/expected.hpp"
#include "source/device_array.hpp"
#include "source/plain_files.hpp"

namespace nb = nanobind;

namespace twinrun {

namespace {

// Dictionaries that are nested deeper are walked in Python, which has its own limit.
constexpr std::size_t kDeepest = 64;
// More arrays than Python's walk takes: it says so. A few lists that each hold the next one twice
// have as many.
constexpr std::size_t kMostFields = 10'000'000;
// After so many fields it looks for Ctrl-C.
constexpr std::size_t kAsked = 4096;

// The entry at a position of a dictionary, or a list, which goes on by one; false: there is none. A
// list's has no key. Borrowed.
bool entry_of(nb::handle container, Py_ssize_t& position, PyObject*& key, PyObject*& value) {
    if (PyDict_Check(container.ptr()) != 0) return PyDict_Next(container.ptr(), &position, &key, &value) != 0;
    if (position >= PyObject_Size(container.ptr())) return false;
    value = PyList_Check(container.ptr()) != 0 ? PyList_GetItem(container.ptr(), position)
                                               : PyTuple_GetItem(container.ptr(), position);
    key = nullptr;
    ++position;
    return true;
}

nb::object name_of_entry(Py_ssize_t number) {
    const std::string text = std::to_string(number);
    return nb::str(text.data(), text.size());
}

// As os.path.join() does.
std::string joined_path(const std::string& folder, const std::string& name) {
    if (name.starts_with('/') || folder.empty()) return name;
    return folder.ends_with('/') ? folder + name : folder + '/' + name;
}

// Of a str, as long as that lives.
std::optional<std::string_view> utf8(nb::handle text) {
    Py_ssize_t length = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
    if (bytes == nullptr) {
        PyErr_Clear();
        return std::nullopt;
    }
    return std::string_view(bytes, static_cast<std::size_t>(length));
}

}  // namespace

nb::handle HeldArrays::Array::there() const {
    if (is_number) return value;
// Its successor is not in the stable interface of the oldest Python that has one.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    PyObject* const array = PyWeakref_GetObject(value.ptr());
#pragma GCC diagnostic pop
    return array == Py_None ? nb::handle() : nb::handle(array);
}

nb::object HeldArrays::there() const {
    nb::dict all;
    for (const Array& held : *arrays) {
        const nb::object array = nb::borrow(held.there());
        if (!array.is_valid()) return nb::none();
        all[held.name] = array;
    }
    return all;
}

std::shared_ptr<const void> held_by_work(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* held) {
                const nb::gil_scoped_acquire locked;
                delete held;
            }};
}

std::optional<FieldList> FieldList::of_arrays(nb::handle container, const nb::object& flatten,
                                              bool on_devices) {
    ArrayWalk walk(container, flatten, on_devices);
    while (walk.next()) {
    }
    return walk.finish();
}

void FieldList::take(std::vector<ListedField> fields) {
    fields_.make_room(fields_->size() + fields.size());
    for (ListedField& field : fields)
        fields_->push_back({std::move(field), {}, {}, places_.size()});
}

bool FieldList::add_metadata(const std::shared_ptr<MetadataFile>& file, bool has_data) {
    auto fields = fields_of(file->directory(), has_data);
    if (!fields) return false;
    take(std::move(*fields));
    Place place{file, has_data, {}, file->bytes_read()};
    for (std::uint32_t at = 0; at < file->directory().data_files.size(); ++at)
        place.paths.push_back(file->data_path(at));
    places_.push_back(std::move(place));
    return true;
}

std::optional<FieldList> FieldList::of_metadata(const PyMetadata& metadata, bool has_data) {
    FieldList list;
    if (!list.add_metadata(metadata.file, has_data)) return std::nullopt;
    return list;
}

std::optional<FieldList> FieldList::of_history(const std::string& history,
                                               const std::vector<std::string>& folders,
                                               const std::vector<const RankFiles*>& files, int threads) {
    if (folders.size() != files.size()) raise({ErrorCode::invalid_argument, "a folder for each place"});
    std::vector<ExpectedMetadata> expected;
    std::size_t fields = 0;
    expected.reserve(files.size());
    for (std::size_t at = 0; at < files.size(); ++at) {
        const RankFiles& own = *files[at];
        if (own.difference != kNoBase || own.metadata.empty()) return std::nullopt;
        expected.push_back({joined_path(joined_path(history, folders[at]), own.metadata), own.metadata_bytes,
                            own.header_checksum, !own.data.empty()});
    }
    StreamOptions stream;
    stream.threads = threads;
    std::vector<std::shared_ptr<MetadataFile>> opened;
    {
        const nb::gil_scoped_release unlocked;
        opened = open_expected(history, expected, worker_count(stream));
    }
    for (const auto& file : opened) {
        if (file == nullptr) return std::nullopt;
        fields += file->directory().fields.size();
    }
    FieldList list;
    list.in_order_ = true;
    list.fields_.make_room(fields);
    for (std::size_t at = 0; at < files.size(); ++at) {
        for (const FieldMetadata& field : opened[at]->directory().fields) {
            if (!is_utf8(field.name)) return std::nullopt;
        }
        if (!list.add_metadata(opened[at], !files[at]->data.empty())) return std::nullopt;
    }
    return list;
}

std::optional<FieldList> FieldList::of_files(const std::vector<std::string>& paths,
                                             const std::vector<std::string>& names, const std::string& format,
                                             bool without_metadata, bool unique, FilesAtHand* at_hand,
                                             int threads) {
    const bool npy = format == "npy";
    if (!npy && format != "safetensors")
        raise({ErrorCode::invalid_argument, "format must be npy or safetensors"});
    if (names.size() != paths.size()) raise({ErrorCode::invalid_argument, "a name for each path"});
    std::optional<FieldsOfFiles> found;
    {
        const nb::gil_scoped_release unlocked;
        StreamOptions stream;
        stream.threads = threads;
        found = fields_of(
            read_plain_files(paths, npy ? PlainFormat::npy : PlainFormat::safetensors, worker_count(stream),
                             without_metadata ? kMetadataSuffix : "", at_hand),
            names, unique);
    }
    if (!found) return std::nullopt;
    FieldList list;
    list.take(std::move(found->fields));
    list.names_ = std::move(found->names);
    list.texts_ = std::move(found->texts);
    list.in_memory_ = std::move(found->in_memory);
    list.places_.push_back({nullptr, true, paths, 0});
    list.in_order_ = !unique;
    return list;
}

std::vector<std::size_t> FieldList::counts() const {
    std::vector<std::size_t> found;
    for (const Place& place : places_)
        found.push_back(place.file == nullptr ? 0 : place.file->directory().fields.size());
    return found;
}

std::vector<std::uint64_t> FieldList::bytes_read() const {
    std::vector<std::uint64_t> found;
    for (const Place& place : places_)
        found.push_back(place.file == nullptr ? 0 : place.bytes_read);
    return found;
}

nb::list FieldList::texts() const {
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

bool FieldList::any_on_device() const {
    return std::any_of(fields_->begin(), fields_->end(),
                       [](const TakenField& field) { return field.device != kHostMemory; });
}

CapturedField captured_field(const TakenField& field, const std::map<std::string, Tolerance>& tolerances,
                             const std::shared_ptr<const void>& owner) {
    CapturedField f;
    f.name = field.text;
    f.dtype = field.dtype;
    f.shape = field.shape;
    f.order = field.fortran_order ? ArrayOrder::column_major : ArrayOrder::row_major;
    // As the caller indexes them.
    if (field.fortran_order) std::reverse(f.shape.begin(), f.shape.end());
    if (field.device == kHostMemory) {
        f.data = field.data;
    } else {
        f.device = array_of(field);
        f.device->ordered = true;
        f.device->owner = owner;
    }
    if (tolerances.empty()) return f;
    if (const auto own = tolerances.find(f.name); own != tolerances.end()) {
        f.own_tolerance = true;
        f.tolerance = own->second;
    }
    return f;
}

CapturedFields FieldList::captured(const std::map<std::string, Tolerance>& tolerances,
                                   const std::shared_ptr<const void>& owner) const {
    CapturedFields all;
    all.fields.reserve(fields_->size());
    for (const TakenField& field : *fields_)
        all.fields.push_back(captured_field(field, tolerances, owner));
    return all;
}

namespace {

// What held() gave, the newest last. Python's lock guards it.
class HeldBefore {
   public:
    using Arrays = std::vector<HeldArrays::Array>;

    // Null where these arrays were not held before, or one of them is another now.
    std::shared_ptr<const Arrays> find(const std::vector<TakenField>& fields) {
        for (auto known = all_.rbegin(); known != all_.rend(); ++known) {
            if (!are(**known, fields)) continue;
            auto found = *known;
            all_.erase(std::next(known).base());
            all_.push_back(found);
            return found;
        }
        return nullptr;
    }
    void keep(std::shared_ptr<const Arrays> arrays) {
        count_ += arrays->size();
        all_.push_back(std::move(arrays));
        while (all_.size() > kMost || count_ > kMostArrays) {
            const auto oldest = all_.front();  // what it releases may run code of Python
            all_.erase(all_.begin());
            count_ -= oldest->size();
        }
    }

   private:
    static constexpr std::size_t kMost = 16;
    static constexpr std::size_t kMostArrays = 1 << 18;  // of all; a hundred bytes each

    static bool are(const Arrays& held, const std::vector<TakenField>& fields) {
        if (held.size() != fields.size()) return false;
        for (std::size_t at = 0; at < fields.size(); ++at) {
            if (held[at].name.ptr() != fields[at].name.ptr() && utf8(held[at].name) != fields[at].text)
                return false;
            if (held[at].there().ptr() != fields[at].owner.ptr()) return false;
        }
        return true;
    }

    std::vector<std::shared_ptr<const Arrays>> all_;
    std::size_t count_ = 0;
};

HeldBefore& held_before() {
    // Never destroyed: Python may be gone before it would be.
    static auto* const all = new HeldBefore;
    return *all;
}

}  // namespace

std::optional<HeldArrays> FieldList::held() const {
    if (made_) return std::nullopt;
    if (auto known = held_before().find(*fields_)) return HeldArrays{std::move(known)};
    auto held = std::make_shared<HeldBefore::Arrays>();
    held->reserve(fields_->size());
    for (const TakenField& field : *fields_) {
        const bool is_number = PyFloat_CheckExact(field.owner.ptr()) || PyLong_Check(field.owner.ptr());
        nb::object value = field.owner;
        if (!is_number) {
            value = nb::steal(PyWeakref_NewRef(field.owner.ptr(), nullptr));
            if (!value.is_valid()) throw nb::python_error();
        }
        held->push_back({field.name, std::move(value), is_number});
    }
    held_before().keep(held);
    return HeldArrays{std::move(held)};
}

nb::dict FieldList::arrays() const {
    nb::dict all;
    auto other = rest_.begin();
    for (std::size_t at = 0; at <= fields_->size(); ++at) {
        for (; other != rest_.end() && PyDict_Size(all.ptr()) == static_cast<Py_ssize_t>(other->place);
             ++other)
            all[other->name] = other->value;
        if (at < fields_->size()) all[(*fields_)[at].name] = (*fields_)[at].owner;
    }
    return all;
}

// ---- the walk ----

ArrayWalk::ArrayWalk(nb::handle container, nb::object flatten, bool on_devices)
    : flatten_(std::move(flatten)), taker_(on_devices) {
    const nb::object collections = nb::steal(PyImport_GetModule(nb::str("collections").ptr()));
    PyErr_Clear();
    if (collections.is_valid()) ordered_ = collections.attr("OrderedDict");
    failed_ = !taker_.knows_any() || !is_walked(container) || !enter(container, nb::object());
}

bool ArrayWalk::is_dictionary(nb::handle value) const {
    if (PyDict_CheckExact(value.ptr())) return true;
    return ordered_.is_valid() && reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) == ordered_.ptr();
}

// By its first entry. Python knows the others, as lists of texts.
bool ArrayWalk::is_list_of_arrays(nb::handle value, int depth) const {
    if (PyList_CheckExact(value.ptr()) == 0 && PyTuple_CheckExact(value.ptr()) == 0) return false;
    if (depth > static_cast<int>(kDeepest) || PySequence_Size(value.ptr()) == 0) return false;
    const nb::object first = nb::steal(PySequence_GetItem(value.ptr(), 0));
    return is_dictionary(first) || taker_.is_array(first) || is_list_of_arrays(first, depth + 1);
}

bool ArrayWalk::is_walked(nb::handle value) const { return is_dictionary(value) || is_list_of_arrays(value); }

bool ArrayWalk::enter(nb::handle container, nb::object prefix) {
    if (levels_.size() > kDeepest) return false;
    Level level;
    level.container = nb::borrow(container);
    level.left = PyObject_Size(container.ptr());
    level.prefix = std::move(prefix);
    // In the order of an OrderedDict, which a plain walk does not know.
    if (is_dictionary(container) && PyDict_CheckExact(container.ptr()) == 0) {
        level.keys = nb::steal(PyObject_GetIter(container.ptr()));
        if (!level.keys.is_valid()) throw nb::python_error();
    }
    list_.fields_.make_room(list_.fields_->size() + static_cast<std::size_t>(level.left));
    levels_.push_back(std::move(level));
    return true;
}

// Brings what is looked at soon into the caches. A name and a tensor are four objects, each
// somewhere else in memory: of thousands, most are in no cache, and to wait for them takes a good
// part of a walk.
void ArrayWalk::look_ahead(Level& level) const {
    constexpr Py_ssize_t kObjects = 16;  // entries ahead
    constexpr Py_ssize_t kTensors = 8;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t i = level.objects == 0 ? kObjects : 1; i != 0; --i) {
        if (!entry_of(level.container, level.objects, key, value)) break;
        if (key != nullptr) {
            __builtin_prefetch(key);
            __builtin_prefetch(reinterpret_cast<const char*>(key) + 64);  // its text
        }
        __builtin_prefetch(value);
    }
    for (Py_ssize_t i = level.tensors == 0 ? kTensors : 1; i != 0; --i) {
        if (!entry_of(level.container, level.tensors, key, value)) break;
        taker_.prefetch(value);
    }
}

// Python's own walk says what is wrong where this one gives up.
bool ArrayWalk::next() {
    const std::size_t before = list_.fields_->size() + list_.rest_.size();
    while (!failed_ && !levels_.empty() && list_.fields_->size() + list_.rest_.size() == before) {
        Level& level = levels_.back();
        nb::object key, value;  // kept: what is called may change the container
        if (level.keys.is_valid()) {
            key = nb::steal(PyIter_Next(level.keys.ptr()));
            if (key.is_valid()) {
                value = nb::borrow(PyDict_GetItemWithError(level.container.ptr(), key.ptr()));
                failed_ = !value.is_valid();
            }
            PyErr_Clear();
        } else {
            look_ahead(level);
            PyObject* own_key = nullptr;
            PyObject* own_value = nullptr;
            if (entry_of(level.container, level.position, own_key, own_value)) {
                value = nb::borrow(own_value);
                key = own_key == nullptr ? name_of_entry(level.position - 1) : nb::borrow(own_key);
            }
        }
        if (!key.is_valid()) {
            failed_ = level.left != 0;  // it changed meanwhile
            levels_.pop_back();
        } else if (!failed_) {
            failed_ = level.left-- == 0 || !take(key, std::move(value));
        }
    }
    return !failed_ && list_.fields_->size() + list_.rest_.size() != before;
}

std::optional<FieldList> ArrayWalk::finish() {
    if (failed_ || list_.fields_->empty()) return std::nullopt;
    // Asked last: devices are at work on the first ones meanwhile.
    for (const TakenField& field : *list_.fields_) {
        if (!taker_.is_plain(field.owner, field.dtype)) return std::nullopt;
    }
    if (may_repeat_) {
        std::unordered_set<std::string_view> names;
        names.reserve(list_.fields_->size() + list_.rest_.size());
        for (const TakenField& field : *list_.fields_) {
            if (!names.insert(field.text).second) return std::nullopt;
        }
        for (const FieldList::Other& other : list_.rest_) {
            if (!names.insert(other.text).second) return std::nullopt;
        }
    }
    return std::move(list_);
}

// An entry of a dictionary. Labels, empty names and other keys are for Python.
bool ArrayWalk::take(nb::handle key, nb::object value) {
    const std::size_t taken = list_.fields_->size() + list_.rest_.size();
    if (taken >= kMostFields) return false;
    if (taken % kAsked == kAsked - 1 && PyErr_CheckSignals() != 0) throw nb::python_error();
    nb::object name;
    if (PyUnicode_CheckExact(key.ptr())) {
        name = nb::borrow(key);
    } else if (PyLong_CheckExact(key.ptr())) {
        name = nb::steal(PyObject_Str(key.ptr()));
        may_repeat_ = true;
    }
    if (!name.is_valid()) return false;
    const Py_ssize_t length = PyUnicode_GetLength(name.ptr());
    if (length <= 0 || PyUnicode_FindChar(name.ptr(), '@', 0, length, 1) != -1) return false;
    if (const nb::object& prefix = levels_.back().prefix; prefix.is_valid()) {
        name = nb::steal(PyUnicode_Concat(prefix.ptr(), name.ptr()));
        if (!name.is_valid()) throw nb::python_error();
    }
    if (is_walked(value) && PyObject_Size(value.ptr()) > 0) {
        may_repeat_ = true;
        nb::object prefix = nb::steal(PyUnicode_FromFormat("%U.", name.ptr()));
        if (!prefix.is_valid()) throw nb::python_error();
        return enter(value, std::move(prefix));
    }
    return add(name, value) || add_parts(name, value);
}

// A number or an array, if the core can take it.
bool ArrayWalk::add(const nb::object& name, nb::handle value) {
    const auto text = utf8(name);
    if (!text) return false;
    list_.fields_.make_room(list_.fields_->size() + 1);
    TakenField& field = list_.fields_->emplace_back();
    if (!taker_.take_unasked(value, field)) {
        field = {};
        if (!take_number(value, field)) {
            list_.fields_->pop_back();
            return false;
        }
    }
    field.name = name;
    field.text = *text;
    field.owner = nb::borrow(value);
    return true;
}

// What Python makes of any other value.
bool ArrayWalk::add_parts(const nb::object& name, nb::handle value) {
    const nb::object parts =
        nb::steal(PyObject_CallFunctionObjArgs(flatten_.ptr(), name.ptr(), value.ptr(), nullptr));
    if (!parts.is_valid()) {
        if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw nb::python_error();  // an interrupt
        PyErr_Clear();
        return false;
    }
    list_.made_ = may_repeat_ = true;
    const nb::dict all = nb::borrow<nb::dict>(parts);
    bool has_labels = false;  // labels stay beside their arrays
    for (const auto [key, part] : all) {
        const auto text = utf8(key);
        if (!text) return false;
        has_labels = has_labels || text->find('@') != std::string_view::npos;
    }
    for (const auto [key, part] : all) {
        const nb::object own = nb::borrow(key);
        if (!has_labels && add(own, part)) continue;
        list_.rest_.push_back(
            {list_.fields_->size() + list_.rest_.size(), own, nb::borrow(part), *utf8(key)});
    }
    return true;
}

// A number of Python's, as numpy converts it.
bool ArrayWalk::take_number(nb::handle value, TakenField& field) {
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
        if (beyond != 0) return false;
        std::memcpy(&bits, &own, sizeof own);
        field.dtype = DType::i64;
    } else {
        return false;
    }
    list_.numbers_.push_back(bits);
    field.items = 1;
    field.data = &list_.numbers_.back();
    return true;
}

}  // namespace twinrun
