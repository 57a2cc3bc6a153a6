#include "engine/listed_fields.hpp"

#include <unordered_set>

namespace twinrun {

namespace {

constexpr char kLabel = '@';  // names with it belong to another field

}  // namespace

DeviceArray array_of(const ListedField& field) {
    DeviceArray array;
    array.device = field.device;
    array.data = field.data;
    array.dtype = field.dtype;
    array.shape = field.shape;
    array.strides = field.strides;
    array.stream = field.stream;
    return array;
}

bool are_alike(const ListedField& a, const ListedField& b) {
    if (a.dtype != b.dtype || a.shape != b.shape || a.fortran_order != b.fortran_order) return false;
    if (a.in_file != b.in_file) return false;
    if ((a.metadata == nullptr) != (b.metadata == nullptr)) return false;
    return a.metadata == nullptr || (a.metadata->global_shape == b.metadata->global_shape &&
                                     a.metadata->global_offset == b.metadata->global_offset);
}

std::optional<std::vector<ListedField>> fields_of(const Directory& directory, bool has_data) {
    if (directory.fields.empty()) return std::nullopt;
    std::vector<ListedField> fields;
    fields.reserve(directory.fields.size());
    for (std::size_t number = 0; number < directory.fields.size(); ++number) {
        const FieldMetadata& own = directory.fields[number];
        if (own.name.find(kLabel) != std::string::npos || !own.key.empty()) return std::nullopt;
        if (own.extents.empty() && own.items() != 0 && has_data) return std::nullopt;
        ListedField field;
        field.text = own.name;
        field.dtype = own.dtype;
        field.fortran_order = own.order == ArrayOrder::column_major;
        field.items = own.items();
        field.shape = own.shape;
        field.metadata = &own;
        field.number = number;
        fields.push_back(std::move(field));
    }
    return fields;
}

std::optional<FieldsOfFiles> fields_of(std::vector<std::optional<PlainFile>> files,
                                       std::span<const std::string> names, bool unique) {
    FieldsOfFiles found;
    std::unordered_set<std::string_view> known;
    for (std::size_t at = 0; at < files.size(); ++at) {
        if (!files[at] || files[at]->arrays.empty()) return std::nullopt;
        for (PlainArray& array : files[at]->arrays) {
            found.names.push_back(names[at] + array.name);
            ListedField field;
            field.text = found.names.back();
            if (field.text.empty() || field.text.find(kLabel) != std::string_view::npos) return std::nullopt;
            if (unique && !known.insert(field.text).second) return std::nullopt;
            field.dtype = array.dtype;
            field.byte_order = array.byte_order;
            field.fortran_order = array.fortran_order;
            field.items = array.items;
            field.shape = array.shape;
            field.in_file = true;
            if (array.items != 0) {
                field.extents.push_back(
                    {static_cast<std::uint32_t>(at), array.offset, item_bytes(array.dtype), array.items});
            }
            found.fields.push_back(std::move(field));
        }
        found.texts.push_back({files[at]->has_texts, std::move(files[at]->texts)});
        if (files[at]->in_memory != nullptr) found.in_memory.push_back(std::move(files[at]->in_memory));
    }
    if (found.fields.empty()) return std::nullopt;
    return found;
}

ListSources::ListSources(std::size_t fields, CacheUse cache) : cache_(cache) { memory_.reserve(fields); }

void ListSources::take_from(FilesInMemory files) {
    if (cache_ == CacheUse::direct) return;
    for (const std::shared_ptr<InputFile>& file : files)
        open_files_->keep(file);
}

FieldSide ListSources::side(const ListedFiles& list, const ListedField& field) {
    if (field.metadata == nullptr && field.device != kHostMemory) {
        devices_.push_back(std::make_unique<DeviceSource>(array_of(field)));
        return FieldSide{devices_.back().get(), nullptr, 0};
    }
    if (field.metadata == nullptr && !field.in_file) {
        memory_.emplace_back(field.dtype, field.items, field.data, item_bytes(field.dtype), false);
        return FieldSide{&memory_.back(), nullptr, 0};
    }
    FieldSide side;
    if (!field.in_file) side = {nullptr, list.metadata, field.number};
    if (field.items != 0 && !list.has_data) return side;
    files_.emplace_back(
        field.dtype, field.items,
        field.in_file ? LaterSource::Place{list.paths, field.extents, field.byte_order}
                      : LaterSource::Place{list.paths, field.metadata->extents, field.metadata->byte_order},
        cache_, open_files_);
    side.elements = &files_.back();
    return side;
}

}  // namespace twinrun
