// The strict safetensors reader and the writer.
#include "core/checkpoint/safetensors.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/checkpoint/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

std::string with_length(const std::string& header, const std::string& buffer, uint64_t length) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + buffer;
}

// The fault that the reader finds in a file of this header and buffer, "" for none.
std::string fault_of(const RunFolder& folder, const std::string& header, const std::string& buffer) {
  write_file(folder / "file", with_length(header, buffer, header.size()));
  return message_of<RunError>([&] { SafetensorsFile file(folder / "file"); });
}

std::string raw_fault(const RunFolder& folder, const std::string& text) {
  write_file(folder / "file", text);
  return message_of<RunError>([&] { SafetensorsFile file(folder / "file"); });
}

struct Item {
  SafetensorsItem item;
  std::string data;
};

template <class T>
Item item(const char* name, const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  const std::string data(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return {{name, dtype, std::move(shape), static_cast<int64_t>(data.size())}, data};
}

Item empty_item(const char* name, const char* dtype, std::vector<int64_t> shape) {
  return {{name, dtype, std::move(shape), 0}, ""};
}

// Writes a file as its plan says.
void write_safetensors(const std::string& path, const std::vector<Item>& items,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> tensors;
  for (const Item& i : items) tensors.push_back(i.item);
  const SafetensorsPlan plan = plan_safetensors(path, tensors, metadata);
  std::string text = plan.head;
  text.resize(static_cast<size_t>(plan.bytes));
  for (const Item& i : items) text.replace(static_cast<size_t>(plan.offsets.at(i.item.name)), i.data.size(), i.data);
  write_file(path, text);
}

}  // namespace

TEST_CASE("the writer's layout: widest dtype first, then name, header padded to eight") {
  const RunFolder folder;
  const std::vector<float> f{1.5f, -2.0f};
  const std::vector<int64_t> l{7};
  const std::vector<uint8_t> b{1, 2, 3};
  write_safetensors(
      folder / "file",
      {item("b", "U8", {3}, b), item("z", "F32", {2}, f), item("a", "F32", {2, 1}, f), item("n", "I64", {}, l)},
      {{"format", "pt"}});
  const std::string text = read_file(folder / "file");
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  CHECK(length % 8 == 0);
  std::string header = text.substr(8, length);
  header.erase(header.find_last_not_of(' ') + 1);
  CHECK(
      header ==
      R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]},"z":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[24,27]}})");
  const SafetensorsFile file(folder / "file");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.entries().size() == 4);
  CHECK(file.entry("a").shape == std::vector<int64_t>{2, 1});
  CHECK(file.entry("n").elements() == 1);
  CHECK(file.values("z") == std::vector<double>{1.5, -2.0});
  CHECK(file.values("n") == std::vector<double>{7});
  CHECK(file.values("b") == std::vector<double>{1, 2, 3});
  CHECK(file.bytes("b") == std::string("\1\2\3"));
  CHECK(file.offset("b") == static_cast<int64_t>(8 + length + 24));
  CHECK(file.contains("a"));
  CHECK_FALSE(file.contains("c"));
  CHECK(has(message_of<RunError>([&] { file.bytes("c"); }), "no tensor named c"));
}

TEST_CASE("empty files, empty tensors and odd names go round") {
  const RunFolder folder;
  write_safetensors(folder / "none", {}, {});
  CHECK(SafetensorsFile(folder / "none").entries().empty());
  const std::vector<float> one{3.0f};
  const std::string name = "q\"uote\\ \n \xc3\xa9";
  write_safetensors(
      folder / "odd",
      {item(name.c_str(), "F32", {1}, one), empty_item("e", "F32", {0, 5}), empty_item("f", "F64", {2, 0})},
      {{"a\"b", "c\n"}});
  const SafetensorsFile file(folder / "odd");
  CHECK(file.values(name) == std::vector<double>{3.0});
  CHECK(file.values("e").empty());
  CHECK(file.entry("e").shape == std::vector<int64_t>{0, 5});
  CHECK(file.metadata().at("a\"b") == "c\n");
}

TEST_CASE("the writer refuses what the reader would") {
  const RunFolder folder;
  const std::vector<float> f{1.0f, 2.0f};
  const auto fault = [&](const std::vector<Item>& items) {
    return message_of<RunError>([&] { write_safetensors(folder / "file", items, {}); });
  };
  CHECK(has(fault({item("a", "F32", {2}, f), item("a", "F32", {2}, f)}), "given twice"));
  CHECK(has(fault({item("a", "F32", {3}, f)}), "do not fit"));
  CHECK(has(fault({item("a", "FP32", {2}, f)}), "unknown dtype"));
  CHECK(has(fault({item("__metadata__", "F32", {2}, f)}), "reserved"));
}

TEST_CASE("values of every dtype that has numbers") {
  const RunFolder folder;
  const std::vector<uint16_t> bf{0x3f80, 0xc040, 0x7f80};
  const std::vector<uint16_t> half{0x3c00, 0xc200, 0x0001, 0x7c00, 0xfbff, 0x8000, 0x7e00};
  const std::vector<double> d{1e300, -0.1};
  const std::vector<int8_t> i8{-128, 127};
  const std::vector<int16_t> i16{-32768};
  const std::vector<uint16_t> u16{65535};
  const std::vector<int32_t> i32{-5};
  const std::vector<uint32_t> u32{4000000000u};
  const std::vector<uint64_t> u64{1ull << 63};
  write_safetensors(folder / "file",
                    {item("bf", "BF16", {3}, bf), item("half", "F16", {7}, half), item("d", "F64", {2}, d),
                     item("i8", "I8", {2}, i8), item("i16", "I16", {1}, i16), item("u16", "U16", {1}, u16),
                     item("i32", "I32", {1}, i32), item("u32", "U32", {1}, u32), item("u64", "U64", {1}, u64),
                     item("bool", "BOOL", {2}, std::vector<uint8_t>{0, 1}), item("f8", "F8_E4M3", {2}, i8)},
                    {});
  const SafetensorsFile file(folder / "file");
  CHECK(file.values("bf") == std::vector<double>{1.0, -3.0, HUGE_VAL});
  const std::vector<double> halves = file.values("half");
  CHECK(std::vector<double>(halves.begin(), halves.begin() + 6) ==
        std::vector<double>{1.0, -3.0, std::ldexp(1.0, -24), HUGE_VAL, -65504.0, -0.0});
  CHECK(std::signbit(halves[5]));
  CHECK(std::isnan(halves[6]));
  CHECK(file.values("d") == d);
  CHECK(file.values("i8") == std::vector<double>{-128, 127});
  CHECK(file.values("i16") == std::vector<double>{-32768});
  CHECK(file.values("u16") == std::vector<double>{65535});
  CHECK(file.values("i32") == std::vector<double>{-5});
  CHECK(file.values("u32") == std::vector<double>{4e9});
  CHECK(file.values("u64") == std::vector<double>{std::ldexp(1.0, 63)});
  CHECK(has(message_of<RunError>([&] { file.values("f8"); }), "F8_E4M3"));
}

TEST_CASE("sizes and the length word are checked first") {
  const RunFolder folder;
  CHECK(has(message_of<RunError>([&] { SafetensorsFile file(folder / "missing"); }), "No such file"));
  CHECK(has(message_of<RunError>([&] { SafetensorsFile file(folder.path()); }), "not a regular file"));
  CHECK(has(raw_fault(folder, ""), "too few"));
  CHECK(has(raw_fault(folder, "1234567"), "too few"));
  CHECK(has(raw_fault(folder, std::string(8, '\0')), "begin with"));
  CHECK(has(raw_fault(folder, with_length("{}", "", 3)), "truncated"));
  CHECK(has(raw_fault(folder, with_length("{}", "", 100'000'001)), "at most 100000000"));
  CHECK(has(raw_fault(folder, with_length("{}", "", ~0ull)), "at most 100000000"));
  CHECK(raw_fault(folder, with_length("{}", "", 2)).empty());
}

TEST_CASE("the header must be strict JSON of the right form") {
  const RunFolder folder;
  const auto fault = [&](const std::string& header, const std::string& buffer = "1234") {
    return fault_of(folder, header, buffer);
  };
  CHECK(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})").empty());
  CHECK(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )").empty());
  CHECK(fault(R"({"a":{"data_offsets":[0,4],"dtype":"F4","shape":[8]}})").empty());
  CHECK(fault(R"({"a":{"dtype":"F6_E2M3","shape":[16],"data_offsets":[0,12]}})", "123456789012").empty());
  CHECK(has(fault(R"( {"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"), "begin with"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} x)"), "not JSON"));
  CHECK(has(fault(std::string("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}\0 x", 56)), "NUL"));
  CHECK(has(fault("{\"\xff\":1}"), "not JSON"));
  CHECK(has(fault("{"), "not JSON"));
  CHECK(has(fault(R"({"a":1})"), "not an object of"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})"), "not an object of"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[1],"offsets":[0,4]}})"), "not an object of"));
  CHECK(has(fault(R"({"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}})"), "unknown dtype"));
  CHECK(has(fault(R"({"a":{"dtype":5,"shape":[1],"data_offsets":[0,4]}})"), "dtype"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})"), "shape is not a list"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})"), "dimension"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})"), "dimension"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})"), "pair"));
  CHECK(has(fault(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})"), "offset"));
  CHECK(has(fault(R"({"__metadata__":[]})", ""), "__metadata__"));
  CHECK(has(fault(R"({"__metadata__":{"a":1}})", ""), "__metadata__"));
}

TEST_CASE("duplicate keys are refused at every level, identical or not") {
  const RunFolder folder;
  const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(has(fault_of(folder, "{" + a + "," + a + "}", "1234"), "appears twice"));
  const std::string empty = R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  CHECK(has(fault_of(folder, "{" + empty + "," + empty + "}", ""), "appears twice"));
  CHECK(has(fault_of(folder, R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"),
            "twice"));
  CHECK(has(fault_of(folder, R"({"__metadata__":{"a":"1","a":"1"}})", ""), "twice"));
  CHECK(has(fault_of(folder, R"({"__metadata__":{},"__metadata__":{}})", ""), "twice"));
  CHECK(
      has(fault_of(folder, "{\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}," + empty + "}", ""),
          "twice"));
}

TEST_CASE("the tensors must tile the buffer exactly") {
  const RunFolder folder;
  const auto entry = [](const char* name, const char* shape, const char* offsets) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":{},"data_offsets":{}}})", name, shape, offsets);
  };
  const auto fault = [&](const std::vector<std::string>& entries, const std::string& buffer) {
    std::string header = "{";
    for (const std::string& text : entries) header += (header.size() > 1 ? "," : "") + text;
    return fault_of(folder, header + "}", buffer);
  };
  CHECK(fault({entry("a", "[2]", "[2,4]"), entry("b", "[2]", "[0,2]")}, "1234").empty());
  CHECK(fault({entry("a", "[2]", "[2,4]"), entry("b", "[2]", "[0,2]"), entry("c", "[0]", "[2,2]")}, "1234").empty());
  CHECK(has(fault({entry("a", "[2]", "[2,4]")}, "1234"), "hole"));
  CHECK(has(fault({entry("a", "[2]", "[0,2]"), entry("b", "[1]", "[3,4]")}, "1234"), "hole"));
  CHECK(has(fault({entry("a", "[3]", "[0,3]"), entry("b", "[2]", "[2,4]")}, "1234"), "overlap"));
  CHECK(has(fault({entry("a", "[4]", "[0,4]"), entry("b", "[4]", "[0,4]")}, "1234"), "overlap"));
  CHECK(has(fault({entry("a", "[0]", "[2,2]"), entry("b", "[4]", "[0,4]")}, "1234"), "overlap"));
  CHECK(has(fault({entry("a", "[4]", "[0,4]")}, "123"), "truncated"));
  CHECK(has(fault({entry("a", "[4]", "[0,4]")}, "12345"), "longer"));
  CHECK(has(fault({}, "1"), "longer"));
  CHECK(has(fault({entry("a", "[4]", "[4,0]")}, "1234"), "span"));
  CHECK(has(fault({entry("a", "[3]", "[0,4]")}, "1234"), "span"));
}

TEST_CASE("sizes that overflow are refused") {
  const RunFolder folder;
  const auto fault = [&](const char* dtype, const char* shape, const char* offsets) {
    return fault_of(folder,
                    fmt::format(R"({{"a":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), "");
  };
  CHECK(has(fault("F32", "[4611686018427387904,4]", "[0,0]"), "more elements"));
  CHECK(has(fault("F32", "[4294967296,4294967296,0]", "[0,0]"), "more elements"));
  CHECK(has(fault("F32", "[9223372036854775807]", "[0,0]"), "more elements"));
  CHECK(has(fault("F32", "[18446744073709551615]", "[0,0]"), "dimension"));
  CHECK(has(fault("F32", "[18446744073709551616]", "[0,0]"), "dimension"));
  CHECK(has(fault("U8", "[1000000000000000000]", "[0,1000000000000000000]"), "truncated"));
  CHECK(has(fault("F4", "[3]", "[0,1]"), "whole number of bytes"));
  CHECK(has(fault("F32", "[0]", "[18446744073709551615,18446744073709551615]"), "offset"));
}
