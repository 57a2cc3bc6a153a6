#include "history/secrets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "history/provenance.hpp"

namespace twinrun {
namespace {

using Words = std::vector<std::string>;

TEST(Secrets, OfTexts) {
    for (const auto& [text, shown] : std::vector<std::pair<std::string, std::string>>{
             {"https://u:SEC@h/x?X-Amz-Signature=SEC&a=1", "https://h/x"},
             {"s3://KEY:SEC@bucket/x", "s3://bucket/x"},
             {"s3:/KEY:SEC@bucket/x", "s3:/bucket/x"},
             {"https://u:S/E?C@h/x", "https://h/x"},
             {"https://u:SE\"C@h/x", "https://h/x"},
             {"https://h/https://u:SEC@g/x?s=SEC", "https://h/https://g/x"},
             {"https://h/x:/y?s=SEC", "https://h/x:/y"},
             {"https://u:SEC@h,https://u:SEC@g/y#SEC z=1", "https://h,https://g/y z=1"},
             {"--url=postgres://u:SEC@h:5432/db", "--url=postgres://h:5432/db"},
             {"jdbc:mysql://h/db?password=SEC", "jdbc:mysql://h/db"},
             {"https://h:80/x,a@b", "https://h:80/x,a@b"},
             {"https://[::1]:80/x", "https://[::1]:80/x"},
             {"/p?token=SEC", "/p?token=..."},
             {"Authorization: Bearer SEC", "Authorization: ..."},
             {"{\"token\":\"SEC\",\"lr\":0.1}", "{\"token\":..."},
             {"{'api_key': 'S\\'EC', 'lr': 0.1}", "{'api_key': ..."},
             {"curl -H 'Authorization: Bearer SEC' x", "curl -H 'Authorization: ..."},
             {"--a=1 --token=SEC --b=2", "--a=1 --token=... --b=2"},
             {"token=SEC", "token=..."},
             {"token=", "token="},
             {"token=...", "token=..."},
             {"/opt/auth:/lib:/usr/lib", "/opt/auth:/lib:/usr/lib"},
             {"a=b=c", "a=b=c"},
             {"--header=Authorization: Bearer SEC", "--header=Authorization: ..."},
             {"--header=PRIVATE-TOKEN: SEC", "--header=PRIVATE-TOKEN: ..."},
             {"--header=X-Api-Key:SEC", "--header=X-Api-Key:..."},
             {"OMP_Z=-DTOKEN=SEC -n 3", "OMP_Z=-DTOKEN=... -n 3"},
             {"a password SEC b", "a password ..."},
             {"--token 'SEC C' --n 3", "--token ... --n 3"},
             {"Bearer SEC", "Bearer ..."},
             {"x='Bearer SEC' y", "x='Bearer ..."},
             {"--api-key SEC", "--api-key ..."},
             {"--token: SEC", "--token: ..."},
             {"/token:SEC", "/token:..."},
             {"PATH=auth:/lib:/token:/usr", "PATH=auth:..."},
             {"/token:/lib", "/token:..."},
             {"--tokens 128 --max-tokens 5 --token-count 3", "--tokens 128 --max-tokens 5 --token-count 3"},
             {"--token --n 3", "--token --n 3"},
             {"a secretary c", "a secretary c"},
             {"max_tokens=5 tokenizer=x sort-key=2 key=3", "max_tokens=5 tokenizer=x sort-key=2 key=3"},
             {"x=-Dpassword=SEC", "x=-Dpassword=..."},
             {"-Dtoken:STRING=SEC", "-Dtoken:..."},
             {"-Debug=1 -easy=2 -Dkeys=3", "-Debug=1 -easy=2 -Dkeys=3"},
             {"{\\\"api_key\\\":\\\"S\\\\\\\"EC\\\",\\\"lr\\\":1}", "{\\\"api_key\\\":..."},
             {"{\\\"lr\\\":1}", "{\\\"lr\\\":1}"},
             {"//u:SEC@h/x --url=//u:SEC@h/x", "//h/x --url=//h/x"},
             {"a//b@c //h/x@y", "a//b@c //h/x@y"},
             {"--to=https%3A%2F%2Fu%3ASEC%40h%2Fx", "--to=https://h/x"},
             {"--to=https%3A%2F%2Fh%2Fx --token=SEC", "--to=https://h/x --token=..."},
             {"50%2F", "50%2F"},
             {"hf_SECSECSECSECSEC1234 (sk-SEC_SEC-SECSECSEC1)", "hf_... (sk-...)"},
             {"AKIASECSECSECSECSEC1,ghp_SECSECSECSECSECSECSEC2", "AKIA...,ghp_..."},
             {"hf_model_of_a_long_name sk-2 myhf_SECSECSECSECSEC1234",
              "hf_model_of_a_long_name sk-2 myhf_SECSECSECSECSEC1234"},
             {"file:///x?y", "file:///x?y"},
             {"x:/y?z", "x:/y?z"},
             {"", ""},
         }) {
        EXPECT_EQ(without_secrets(text), shown);
        EXPECT_EQ(without_secrets(shown), shown) << "a second time";
    }
}

// One line of tests/vectors/secrets.txt, without what escapes signs.
std::string unescaped_line(std::string_view line) {
    std::string out;
    for (std::size_t at = 0; at < line.size(); ++at) {
        const bool is_escaped = line[at] == '\\' && at + 1 < line.size();
        if (is_escaped) ++at;
        out += is_escaped && line[at] == 'n' ? '\n' : line[at];
    }
    return out;
}

// The watcher of studies, which is written in Python, must pass the same examples.
TEST(Secrets, OfBothThatHideThem) {
    std::ifstream file(TWINRUN_TEST_VECTORS "/secrets.txt");
    std::size_t hidden = 0, kept = 0;
    for (std::string line; std::getline(file, line);) {
        const std::string text = unescaped_line(line.substr(std::min<std::size_t>(5, line.size())));
        const std::string shown = without_secrets(text);
        if (line.starts_with("keep\t")) {
            ++kept;
            EXPECT_EQ(shown, text);
        } else if (line.starts_with("hide\t")) {
            ++hidden;
            EXPECT_EQ(shown.find("SEC"), std::string::npos) << text << " -> " << shown;
        }
        EXPECT_EQ(without_secrets(shown), shown) << "a second time";
    }
    EXPECT_GT(hidden, 160U);
    EXPECT_GT(kept, 40U);
}

TEST(Secrets, OfNamesOfVariables) {
    Provenance p;
    for (const char* name : {"GMX_DBPASS", "OMP_secretKey", "OMP_ACCESSKEY", "OMP_AccessKey", "NCCL_passWord",
                             "UCX_DB_PWD", "UCX_AUTHKEY"})
        p.groups["environment"][name] = "SEC";
    p.groups["environment"]["GMX_BYPASS"] = "1";
    p.groups["environment"]["OMP_PROC_BIND"] = "close";
    EXPECT_EQ(provenance_to_json(p),
              R"({"environment":{"GMX_BYPASS":"1","GMX_DBPASS":"...","NCCL_passWord":"...",)"
              R"("OMP_ACCESSKEY":"...","OMP_AccessKey":"...","OMP_PROC_BIND":"close",)"
              R"("OMP_secretKey":"...","UCX_AUTHKEY":"...","UCX_DB_PWD":"..."}})");
}

TEST(Secrets, OfLongTexts) {
    // The work grows with the length: these would take hours otherwise.
    for (const std::string part : {"token=a ", "--n ", "token\\", "\"", " ", "%22", "a_", "eyJa.", "eyJ",
                                   "SG.a.", "Basic a", "authkey"}) {
        std::string text;
        while (text.size() < 100'000)
            text += part;
        EXPECT_EQ(without_secrets(text + " token=SEC").find("SEC"), std::string::npos);
    }
}

TEST(Secrets, OfArguments) {
    for (const auto& [words, shown] : std::vector<std::pair<Words, Words>>{
             {{"--token", "SEC", "--n", "3"}, {"--token", "...", "--n", "3"}},
             {{"--secret", "-SEC"}, {"--secret", "..."}},
             {{"--dbpass", "SEC", "--n", "3"}, {"--dbpass", "...", "--n", "3"}},
             {{"--authkey", "SEC", "--hotkey", "x", "--otp", "123456"},
              {"--authkey", "...", "--hotkey", "x", "--otp", "..."}},
             {{"env", "LDAP_BINDPW=SEC", "GH_PAT=SEC", "sim"},
              {"env", "LDAP_BINDPW=...", "GH_PAT=...", "sim"}},
             {{"Basic", "YTpSEC3==", "npm_SECSECSECSECSECSECSECSECSECSEC", "Basic", "training"},
              {"Basic", "...", "npm_...", "Basic", "training"}},
             {{"env", "PGPASS=SEC", "MYSQL_PWD=SEC", "sim"}, {"env", "PGPASS=...", "MYSQL_PWD=...", "sim"}},
             {{"env", "PWD=/me", "OLDPWD=/", "--compass", "n"},
              {"env", "PWD=/me", "OLDPWD=/", "--compass", "n"}},
             {{"--token", "--other", "4"}, {"--token", "--other", "4"}},
             {{"--token", "-v", "4"}, {"--token", "-v", "4"}},
             {{"--access_key", "SEC"}, {"--access_key", "..."}},
             {{"--wandb-key=SEC"}, {"--wandb-key=..."}},
             {{"--accessKey", "SEC"}, {"--accessKey", "..."}},
             {{"--authToken=SEC"}, {"--authToken=..."}},
             {{"--auth=u:SEC"}, {"--auth=..."}},
             {{"--pw=SEC and more"}, {"--pw=..."}},
             {{"+trainer.api_key=SEC"}, {"+trainer.api_key=..."}},
             {{"AWS_SECRET_ACCESS_KEY=SEC"}, {"AWS_SECRET_ACCESS_KEY=..."}},
             {{"-H", "Authorization: Bearer SEC"}, {"-H", "Authorization: ..."}},
             {{"{\"token\":\"SEC\"}"}, {"{\"token\":..."}},
             {{"https://u:SEC@token.h/x?b=SEC"}, {"https://token..."}},
             {{"--header=X-Api-Key: SEC"}, {"--header=X-Api-Key: ..."}},
             {{"-DPASSWORD=SEC", "-eTOKEN=SEC"}, {"-DPASSWORD=...", "-eTOKEN=..."}},
             {{"--privatekey=SEC", "--sig=SEC"}, {"--privatekey=...", "--sig=..."}},
             {{"--accesskey", "SEC", "--AccessKeyId=SEC"}, {"--accesskey", "...", "--AccessKeyId=..."}},
             {{"--pwd", "SEC", "--bearer", "SEC"}, {"--pwd", "...", "--bearer", "..."}},
             {{"--secretid", "SEC", "--passcode", "SEC"}, {"--secretid", "...", "--passcode", "..."}},
             {{"--token:", "SEC", "token", "SEC"}, {"--token:", "...", "token", "..."}},
             {{"/token:SEC", "Bearer SEC"}, {"/token:...", "Bearer ..."}},
             {{"token", "--n", "3"}, {"token", "--n", "3"}},
             {{"--tokens", "128", "--max-tokens=1024", "--token-count", "7", "--keyword", "x", "--keys", "k"},
              {"--tokens", "128", "--max-tokens=1024", "--token-count", "7", "--keyword", "x", "--keys",
               "k"}},
             {{"--signal", "9", "--sig-figs", "3", "-Dkeys=4", "--DEPTH=2", "--design=a"},
              {"--signal", "9", "--sig-figs", "3", "-Dkeys=4", "--DEPTH=2", "--design=a"}},
             {{"--key", "id", "--sort-key", "n", "--max-tokens", "5"},
              {"--key", "id", "--sort-key", "n", "--max-tokens", "5"}},
             {{"-Dpassword=SEC", "-etoken=SEC", "-Dsecret", "SEC"},
              {"-Dpassword=...", "-etoken=...", "-Dsecret", "..."}},
             {{"--mytoken=SEC", "--MYPASSWORD", "SEC", "--oauth=SEC", "--jwt", "SEC", "--userpass=SEC"},
              {"--mytoken=...", "--MYPASSWORD", "...", "--oauth=...", "--jwt", "...", "--userpass=..."}},
             {{"--header=X-Api-Key:", "SEC", "{token:", "SEC}", "Authorization:", "Basic", "SEC", "x"},
              {"--header=X-Api-Key:", "...", "{token:", "...", "Authorization:", "Basic", "...", "x"}},
             {{"--to=https://u:SEC@h,token:", "SEC"}, {"--to=https://h,token:", "..."}},
             {{"secret", "=", "SEC", "--n", "3", "T::token::", "x"},
              {"secret", "=", "...", "--n", "3", "T::token::", "..."}},
             {{"sim", "--atol=1e-6", "s3://b/x", ""}, {"sim", "--atol=1e-6", "s3://b/x", ""}},
         }) {
        EXPECT_EQ(without_secrets(words), shown);
        EXPECT_EQ(words_of_line(quoted_line(words)), words);
    }
    EXPECT_EQ(words_of_line("a 'b c"), (Words{"a", "b c"}));  // cut
}

TEST(Secrets, OfValuesThatAreCut) {
    constexpr std::size_t kLongest = 16 << 10;
    Provenance p;
    // Its user and password end behind the place of the cut.
    p.groups["environment"]["OMP_X"] = std::string(kLongest - 20, 'x') + " https://me:SECSECSECSECSEC@host/x";
    std::string hostile;
    while (hostile.size() < 1U << 20U)
        hostile += "a://b:x,";
    p.groups["environment"]["OMP_Y"] = hostile;
    const std::string json = provenance_to_json(p);
    EXPECT_EQ(json.find("SEC"), std::string::npos);
    EXPECT_NE(json.find("https://"), std::string::npos);
    EXPECT_LT(json.size(), 3 * kLongest);
}

TEST(Secrets, OfHistoriesThatHaveThem) {
    Provenance p;
    p.groups["program"]["arguments"] = "sim --token=SEC '--pw=a SEC' s3://k:SEC@b/x 'it'\\''s' -n 3";
    p.groups["environment"]["OMPI_MCA_x"] = "token=SEC";
    const auto again = provenance_from_json(provenance_to_json(p));
    ASSERT_TRUE(again);
    EXPECT_EQ(again->groups.at("program").at("arguments"),
              "sim --token=... --pw=... s3://b/x 'it'\\''s' -n 3");
    EXPECT_EQ(again->groups.at("environment").at("OMPI_MCA_x"), "token=...");
}

}  // namespace
}  // namespace twinrun
