// Work on the fake device library, with its calls failing one after the other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "device/device_workspace.hpp"
#include "support/device.hpp"
#include "support/fake_device.hpp"

namespace twinrun::testing {

// In a test: without the fake device library it is skipped.
#define TWR_FAKE_DEVICE(name)                                                                    \
    const ::twinrun::testing::FakeDeviceControl* const name = ::twinrun::testing::fake_device(); \
    if (name == nullptr)                                                                         \
    GTEST_SKIP() << "faults are for the fake device library, which is not in use"                \
                    " (TWINRUN_CUDA_LIBRARY)"

enum class LessMemory { does, may_fail };

// `work` succeeds, and then has checked what it found, or says why not. It is run with every call of the device library failing
// once, and with every function failing for good: what it says then must be what the library said, with the device's name;
// afterwards it must work again, and nothing may be held. LessMemory::does: one failed allocation must not make it fail.
inline void fail_each_call(const FakeDeviceControl& fake, LessMemory less,
                           const std::function<Result<>()>& work) {
    struct NoFault {
        const FakeDeviceControl& fake;
        ~NoFault() { fake.fail(""); }
    } end{fake};
    const auto expect_success = [&] {
        fake.fail("");
        const auto done = work();
        EXPECT_TRUE(done) << (done ? "" : done.error().message);
    };
    const auto held = [&] {
        DeviceWorkspaces::release_all_idle();
        FakeDeviceHeld now;
        fake.held(&now);
        return now;
    };
    const auto attempt = [&](const std::string& fault, bool must_succeed) {
        SCOPED_TRACE(fault);
        ASSERT_TRUE(fake.fail(fault.c_str()));
        const auto done = work();
        const bool failed = fake.failed() != 0;
        fake.fail("");
        if (done) return;
        const Error& error = done.error();
        EXPECT_TRUE(failed) << error.message;
        EXPECT_FALSE(must_succeed) << error.message;
        const bool memory = fault.find("out_of_memory") != std::string::npos;
        EXPECT_EQ(error.code, memory ? ErrorCode::out_of_memory : ErrorCode::io) << error.message;
        EXPECT_NE(error.message.find("cuda:"), std::string::npos) << error.message;
        EXPECT_NE(error.message.find("fake device"), std::string::npos) << error.message;
    };
    const FakeDeviceHeld before = held();
    std::map<std::string, std::uint64_t>
        calls_of;  // how often the work calls each function, with all memory to be allocated first
    // With all memory to be allocated first, and with what earlier calls left.
    for (const bool warm : {false, true}) {
        SCOPED_TRACE(warm ? "warm" : "cold");
        if (!warm) static_cast<void>(held());
        expect_success();
        const std::uint64_t calls = fake.calls("any");
        ASSERT_GT(calls, 0U);
        if (!warm) {
            for (const char* const* name = fake.functions; *name != nullptr; ++name)
                calls_of[*name] = fake.calls(*name);
        }
        const std::uint64_t step = calls / static_cast<std::uint64_t>(test_rounds(200)) + 1;
        for (const char* code : {"out_of_memory", "io", "lost"}) {
            const bool memory = std::string(code) == "out_of_memory";
            for (std::uint64_t at = 1; at <= calls; at += step) {
                if (!warm) static_cast<void>(held());
                attempt("any:" + std::to_string(at) + ":" + code, memory && less == LessMemory::does);
                if (::testing::Test::HasFailure()) return;
            }
            expect_success();
        }
    }
    // A function that is not called that often does not fail: the work would be that of expect_success().
    for (const auto& [name, made] : calls_of) {
        static_cast<void>(held());
        for (const std::uint64_t first : {1U, 4U}) {
            if (made < first) continue;
            for (const char* code : {"out_of_memory", "io"}) {
                attempt(name + ":" + std::to_string(first) + "+:" + code, false);
                if (::testing::Test::HasFailure()) return;
            }
        }
    }
    expect_success();
    EXPECT_EQ(held(), before);
}

}  // namespace twinrun::testing
