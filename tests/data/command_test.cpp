// `olmotrain data` as a user meets it: outputs, messages, exit codes.
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>

#include "tests/catch.h"
#include "tests/data/scratch.h"

using namespace olmo;

namespace {

struct Outcome {
  int code;
  std::string out, error;
};

Outcome run(const ScratchFolder& folder, const std::string& arguments) {
  const std::string command = std::string(OLMO_BINARY) + " data " + arguments + " >" + folder.path("stdout") + " 2>" +
                              folder.path("stderr") + " </dev/null";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder.path("stdout")),
          read_file(folder.path("stderr"))};
}

int64_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace

TEST_CASE("tokenize, inspect and verify from the command line", "[command]") {
  const ScratchFolder folder;
  const std::string input = folder.write("t.txt", "In the beginning\n"), output = folder.path("t.npy");
  const std::string tokenize = "tokenize " + input + " --tokenizer byte --output " + output;
  const Outcome made = run(folder, tokenize);
  CHECK(made.code == 0);
  CHECK(made.error.empty());
  CHECK(contains(made.out, "1 documents (0 empty left out), 17 bytes of text, 18 tokens"));
  const Outcome again = run(folder, tokenize);
  CHECK(again.code == 2);
  CHECK(contains(again.error, "--force"));
  CHECK(lines(again.error) == 1);
  CHECK(run(folder, tokenize + " --force").code == 0);

  const Outcome shown = run(folder, "inspect " + output + " --tokenizer byte --sequence-length 6 --rows 2");
  CHECK(shown.code == 0);
  for (const char* part : {"tokens           18", "10 to 256", "sequences        3 of 6", "In the\n", " begin\n"}) {
    CHECK(contains(shown.out, part));
  }
  const Outcome good = run(folder, "verify " + output + " --tokenizer byte");
  CHECK(good.code == 0);
  CHECK(contains(good.out, "18 tokens in 1 file(s), all below 257"));
  const Outcome bad = run(folder, "verify " + output + " --vocab 110 --dtype uint16");
  CHECK(bad.code == 2);
  CHECK(contains(bad.error, "t.npy: token 1 has id 110, past the vocabulary of 110"));
  CHECK(lines(bad.error) == 1);
  CHECK(run(folder, "inspect " + output).code == 2);
  CHECK(run(folder, "verify " + output).code == 2);
  CHECK(run(folder, "verify " + folder.path("none.npy") + " --vocab 5").code == 2);
}
