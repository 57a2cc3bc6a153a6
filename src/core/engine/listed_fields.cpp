#include "engine/listed_fields.hpp"

namespace twinrun {

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
