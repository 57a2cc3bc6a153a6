// Fields of tests: their elements in memory, and their metadata.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "metadata/metadata.hpp"
#include "sketch/build.hpp"
#include "source/source.hpp"

namespace twinrun::testing {

// The values as items of this type, which outlive the result.
template <class T>
std::unique_ptr<MemorySource> memory_of(DType dtype, const std::vector<T>& values) {
    return std::make_unique<MemorySource>(dtype, values.size() * sizeof(T) / item_bytes(dtype), values.data(),
                                          item_bytes(dtype), false);
}

// The plan of a field with these elements, under a tolerance.
inline FieldPlan plan_of(DType dtype, std::uint64_t items, const Tolerance& tolerance = {1e-3, 0}) {
    FieldPlan plan;
    plan.name = "x";
    plan.dtype = dtype;
    plan.shape = {items};
    plan.tolerance = tolerance;
    return plan;
}

// Writes the metadata of one field to this path, in place of what is there, and opens it.
inline std::shared_ptr<MetadataFile> index_field(const std::string& path, ElementSource& source,
                                                 FieldPlan plan) {
    Directory directory;
    directory.fields.push_back(plan_field(std::move(plan)).value());
    auto writer = MetadataWriter::create(posix_file_system(), path, std::move(directory)).value();
    writer->may_replace();
    EXPECT_TRUE(build_field(*writer, 0, source, {}));
    EXPECT_TRUE(writer->commit());
    return MetadataFile::open(path).value();
}

}  // namespace twinrun::testing
