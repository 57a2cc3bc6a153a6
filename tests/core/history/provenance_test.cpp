#include "history/provenance.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <filesystem>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twinrun {
namespace {

std::string fact(const Provenance& p, const std::string& group, const std::string& name) {
    const auto facts = p.groups.find(group);
    if (facts == p.groups.end()) return "(no such group)";
    const auto value = facts->second.find(name);
    return value == facts->second.end() ? "(no such fact)" : value->second;
}

bool has(const Provenance& p, const std::string& group, const std::string& name) {
    const auto facts = p.groups.find(group);
    return facts != p.groups.end() && facts->second.contains(name);
}

// A variable of the environment for the time of a test.
class Variable {
   public:
    Variable(const char* name, const char* value) : name_(name) {
        if (const char* old = std::getenv(name)) old_ = old, there_ = true;
        setenv(name, value, 1);
    }
    ~Variable() {
        if (there_) {
            setenv(name_, old_.c_str(), 1);
        } else {
            unsetenv(name_);
        }
    }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

   private:
    const char* name_;
    std::string old_;
    bool there_ = false;
};

TEST(Provenance, RoundTrip) {
    Provenance p;
    p.groups["program"] = {{"path", "/a b/\"c\"\\d"},
                           {"arguments", "line\nbreak\ttab \x01 \u00e4 \U0001F600"}};
    p.groups["empty"] = {};
    p.groups[""] = {{"", ""}};
    p.groups["environment"]["OMP_NUM_THREADS"] = std::string("nul\0inside", 10);
    const auto again = provenance_from_json(provenance_to_json(p));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->groups, p.groups);

    const Provenance here = collect_provenance();
    const auto copy = provenance_from_json(provenance_to_json(here));
    ASSERT_TRUE(copy) << copy.error().message;
    EXPECT_EQ(copy->groups, here.groups);

    const auto none = provenance_from_json(provenance_to_json({}));
    ASSERT_TRUE(none);
    EXPECT_TRUE(none->empty());
}

TEST(Provenance, WhateverIsWrittenCanBeRead) {
    Provenance p;
    p.groups["bytes"]["all"] = [] {
        std::string s;
        for (int i = 1; i < 256; ++i)
            s += static_cast<char>(i);
        return s;
    }();
    p.groups["bytes"]["\xff\xc3"] = "cut short: \xe2\x82";
    p.groups["bytes"]["forms"] = "\xc0\xaf \xed\xa0\x80 \xf5\x80\x80\x80 \xf0\x80\x80\x80 \xf4\x90\x80\x80";
    p.groups["long"]["value"] = std::string(1 << 20, '\x01');
    const auto again = provenance_from_json(provenance_to_json(p));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(fact(*again, "bytes", "??"), "cut short: ??");
    EXPECT_EQ(fact(*again, "bytes", "forms"), "?? ??? ???? ???? ????");
    EXPECT_EQ(fact(*again, "long", "value"), std::string(16 << 10, '\x01'));

    for (int i = 0; i < 5000; ++i) {
        p.groups["many" + std::to_string(i % 70)]["name" + std::to_string(i)] = std::string(1000, '\x02');
    }
    const std::string json = provenance_to_json(p);
    EXPECT_LT(json.size(), 2U << 20);
    const auto some = provenance_from_json(json);
    ASSERT_TRUE(some) << some.error().message;
    EXPECT_FALSE(some->empty());
}

TEST(Provenance, HostileJson) {
    const std::string deep_arrays(1 << 20, '[');
    std::string deep_objects;
    for (int i = 0; i < 100000; ++i)
        deep_objects += "{\"a\":";
    for (const std::string& bad :
         {std::string(), std::string("null"), std::string("[]"), std::string("{\"a\":1}"),
          std::string("{\"a\":[]}"), std::string("{\"a\":{\"b\":1}}"), std::string("{\"a\":{\"b\":null}}"),
          std::string("{\"a\":{\"b\":{}}}"), std::string("{\"a\":\"b\"}"),
          std::string("{\"a\":{\"b\":\"c\"}"), std::string("{\"a\":{\"b\":\"c\"}} x"),
          std::string("{\"a\":{\"b\":\"\xff\"}}"), std::string("{\"a\":{\"b\":\"\\ud800\"}}"),
          std::string("\0", 1), deep_arrays, deep_objects,
          "{\"a\":{\"b\":\"" + std::string(3 << 20, 'x') + "\"}}"}) {
        const auto p = provenance_from_json(bad);
        ASSERT_FALSE(p) << bad.substr(0, 80);
        EXPECT_EQ(p.error().code, ErrorCode::damaged);
    }
    // Every prefix of a good one is none.
    const std::string good = "{\"a\":{\"b\":\"c\",\"d\":\"\\u00e4\"},\"e\":{}}";
    ASSERT_TRUE(provenance_from_json(good));
    for (std::size_t n = 0; n < good.size(); ++n)
        EXPECT_FALSE(provenance_from_json(good.substr(0, n))) << n;
}

TEST(Provenance, SaysWhatRunsHere) {
    const Provenance p = collect_provenance();
    EXPECT_EQ(fact(p, "program", "path"), std::filesystem::canonical("/proc/self/exe").string());
    EXPECT_EQ(fact(p, "program", "working_directory"), std::filesystem::current_path().string());
    EXPECT_NE(fact(p, "program", "arguments").find("test_history"), std::string::npos);
    EXPECT_TRUE(has(p, "program", "build"));
    EXPECT_TRUE(has(p, "host", "kernel"));
    EXPECT_GT(std::stoi(fact(p, "cpu", "cores_available")), 0);
    EXPECT_EQ(fact(p, "compiler", "twinrun_version"), TWINRUN_VERSION);
    EXPECT_TRUE(has(p, "libraries", "libc") || has(p, "libraries", "libstdc++"));
    EXPECT_FALSE(has(p, "libraries", "libgtest"));
    const std::string start = fact(p, "time", "start");
    EXPECT_TRUE(start.size() == 20 && start[10] == 'T' && start.back() == 'Z') << start;
    for (const auto& [group, facts] : p.groups) {
        for (const auto& [name, value] : facts) {
            EXPECT_TRUE(!value.empty() || group == "environment") << group << " " << name;
        }
    }
}

TEST(Provenance, EnvironmentByList) {
    const Variable threads("OMP_NUM_THREADS", "3");
    const Variable empty("MKL_CBWR", "");
    const Variable equals("OMPI_MCA_coll", "a=b=c");
    const Variable other("TWINTEST_UNLISTED", "hidden-value-1");
    const Variable password("TWINRUN_PASSWORD", "hidden-value-2");
    const Variable token("CUDA_API_TOKEN", "hidden-value-3");
    const Variable launcher("OMPI_MCA_orte_precondition_transports", "hidden-value-4");
    const Variable almost("XOMP_NUM_THREADS", "hidden-value-5");
    const Variable cloud("AWS_SECRET_ACCESS_KEY", "hidden-value-6");
    const Variable key("FI_PROVIDER_KEY", "hidden-value-7");
    const Variable task("TWINRUN_TASK_FOLDER", "hidden-value-8");
    const Variable wheel("MKL_TOKENS", "128");  // a number of things
    const Provenance p = collect_provenance();
    EXPECT_EQ(fact(p, "environment", "OMP_NUM_THREADS"), "3");
    EXPECT_EQ(fact(p, "environment", "MKL_CBWR"), "");
    EXPECT_EQ(fact(p, "environment", "OMPI_MCA_coll"), "a=b=c");
    EXPECT_EQ(fact(p, "environment", "MKL_TOKENS"), "128");
    EXPECT_EQ(provenance_to_json(p).find("hidden-value"), std::string::npos);
    EXPECT_FALSE(has(p, "environment", "PATH"));
    EXPECT_FALSE(has(p, "environment", "HOME"));
}

TEST(Provenance, FloatingPointEnvironmentOfTheCaller) {
    const Provenance before = collect_provenance();
    EXPECT_EQ(fact(before, "floating_point", "rounding"), "to nearest");
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040U);
#endif
    const Provenance changed = collect_provenance();
#if defined(__x86_64__)
    _mm_setcsr(saved);
#endif
    std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    EXPECT_EQ(fact(before, "floating_point", "flush_to_zero"), "off");
    EXPECT_EQ(fact(before, "floating_point", "denormals_are_zero"), "off");
    EXPECT_EQ(fact(changed, "floating_point", "flush_to_zero"), "on");
    EXPECT_EQ(fact(changed, "floating_point", "denormals_are_zero"), "on");
    EXPECT_EQ(fact(changed, "floating_point", "rounding"), "upward");
#else
    EXPECT_NE(fact(changed, "floating_point", "rounding"), "to nearest");
#endif
    // Nothing else follows from it: facts are text.
    EXPECT_EQ(fact(changed, "cpu", "cores_available"), fact(before, "cpu", "cores_available"));
}

}  // namespace
}  // namespace twinrun
