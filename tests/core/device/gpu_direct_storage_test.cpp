#include "device/gpu_direct_storage.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "device/cufile_abi.hpp"

#if __has_include(<cufile.h>) && __has_include(<cuda.h>)
#include <cufile.h>
#define TWR_HAVE_CUFILE_H 1
#endif

namespace twinrun {
namespace {

#if defined(TWR_HAVE_CUFILE_H)
static_assert(sizeof(cufile::Error) == sizeof(CUfileError_t));
static_assert(offsetof(cufile::Error, code) == offsetof(CUfileError_t, err));
static_assert(offsetof(cufile::Error, driver) == offsetof(CUfileError_t, cu_err));
static_assert(sizeof(cufile::Descriptor) == sizeof(CUfileDescr_t));
static_assert(offsetof(cufile::Descriptor, type) == offsetof(CUfileDescr_t, type));
static_assert(offsetof(cufile::Descriptor, fd) == offsetof(CUfileDescr_t, handle));
static_assert(offsetof(cufile::Descriptor, operations) == offsetof(CUfileDescr_t, fs_ops));
static_assert(sizeof(cufile::Handle) == sizeof(CUfileHandle_t));
static_assert(cufile::kBaseError == CUFILEOP_BASE_ERR);
static_assert(cufile::kDriverNotInitialized == CU_FILE_DRIVER_NOT_INITIALIZED);
static_assert(cufile::kDriverAlreadyOpen == CU_FILE_DRIVER_ALREADY_OPEN);
static_assert(std::is_same_v<cufile::Read, decltype(&cuFileRead)>);
static_assert(std::is_same_v<cufile::HandleDeregister, decltype(&cuFileHandleDeregister)>);
#endif

TEST(CufileAbi, IsThatOfTheHeader) {
    EXPECT_EQ(cufile::Descriptor{}.type, 1);  // a file descriptor of Linux
#if !defined(TWR_HAVE_CUFILE_H)
    GTEST_SKIP() << "cufile.h is not installed";
#endif
}

TEST(DirectStorage, WithoutItFilesAreRefusedWithTheReason) {
    const DirectStorageFacts& facts = probe_direct_storage();
    if (facts.available) GTEST_SKIP() << "it is there: " << facts.library;
    EXPECT_FALSE(facts.reason.empty());
    const auto file = InputFile::open("/proc/self/exe");
    ASSERT_TRUE(file);
    const auto opened = DirectStorageFile::open(**file);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::unsupported);
    EXPECT_EQ(opened.error().message, facts.reason);
    std::byte memory{};
    const DirectStorageBuffer buffer(&memory, 1);  // without effect
}

}  // namespace
}  // namespace twinrun
