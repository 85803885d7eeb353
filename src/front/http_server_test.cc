// HTTP as hostile clients speak it.
#include "front/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "front/http_client_test.h"
#include "serve/two_nodes_test.h"

namespace lynx {
namespace {

using testing::HasSubstr;
using testing::Not;

// Says what it was asked.
HttpResponse Echo(HttpRequest& http) {
  HttpResponse response;
  response.body = http.method() + " " + http.path();
  if (http.method() != "POST" || http.path() == "/deaf") return response;
  const auto body = http.Body();
  response.status = body.ok() ? 200 : body.status().code() == ErrorCode::kLimit ? 413 : 400;
  response.body += " " + (body.ok() ? *body : body.status().message());
  return response;
}

HttpResponse Refused(int status) {
  HttpResponse response;
  response.status = status;
  response.body = "refused";
  return response;
}

std::unique_ptr<HttpServer> Serve(const HttpLimits& limits = {}) {
  return HttpServer::Start("127.0.0.1:0", limits, {Echo, Refused}).value();
}

TestResponse Exchange(const HttpServer& server, const std::string& bytes) {
  TestClient client(server.address());
  client.Send(bytes);
  return client.Read();
}

TEST(HttpServer, ReadsBodiesOfBothKinds) {
  const Watchdog watchdog(60);
  const auto server = Serve();
  EXPECT_EQ(Exchange(*server, "GET /a%20b?c=d HTTP/1.1\r\n\r\n").body, "GET /a b");
  EXPECT_EQ(Exchange(*server, "POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").body, "POST /x abc");
  EXPECT_EQ(
      Exchange(*server, "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n").body,
      "POST /x abc");
  EXPECT_EQ(Exchange(*server,
                     "POST /x HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=a\r\n"
                     "Content-Length: 3\r\n\r\nabc")
                .body,
            "POST /x abc");
}

TEST(HttpServer, KeepsAConnectionForManyRequests) {
  const Watchdog watchdog(60);
  const auto server = Serve();
  TestClient client(server->address());
  client.Send("GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 1\r\n\r\nxGET /3 HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.Read().body, "GET /1");
  EXPECT_EQ(client.Read().body, "POST /2 x");
  EXPECT_EQ(client.Read().body, "GET /3");
  client.Send("GET /4 HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().body, "GET /4");
  EXPECT_TRUE(client.Ended());
}

// Otherwise it would be taken for the next request.
TEST(HttpServer, ABodyThatNobodyReadEndsTheConnection) {
  const Watchdog watchdog(60);
  const auto server = Serve();
  for (const char* request : {"POST /deaf", "GET /x", "DELETE /x"}) {
    TestClient client(server->address());
    client.Send(std::string(request) + " HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET /no HTTP/1.1\r\n\r\n");
    const TestResponse response = client.Read();
    EXPECT_EQ(response.body, request);
    EXPECT_THAT(response.head, HasSubstr("Connection: close"));
    EXPECT_FALSE(client.Read().complete);
    EXPECT_TRUE(client.Ended());
  }
}

TEST(HttpServer, RefusesWhatIsNotClear) {
  const Watchdog watchdog(60);
  const auto server = Serve();
  for (const char* headers :
       {"", "Content-Length: -1\r\n", "Content-Length: 1x\r\n", "Transfer-Encoding: gzip\r\n",
        "Content-Length: 5\r\nContent-Encoding: gzip\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "Content-Length: 5\r\nContent-Length: 4\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n"}) {
    const TestResponse response = Exchange(*server, "POST /x HTTP/1.1\r\n" + std::string(headers) + "\r\n0\r\n\r\n");
    EXPECT_EQ(response.status, 400) << headers;
    EXPECT_THAT(response.head, HasSubstr("Connection: close"));
  }
  for (const char* garbage : {"\r\n\r\n", "nonsense\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/9\r\n\r\n",
                              "BREW / HTTP/1.1\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    EXPECT_EQ(Exchange(*server, garbage).status, 400) << garbage;
  }
}

// What a proxy in front may read differently, so that what is a body for one is a request for the other.
TEST(HttpServer, NoRequestHidesInAnother) {
  const Watchdog watchdog(60);
  const auto server = Serve();
  const std::string chunked = "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body :
       {"zz\r\n", "0x1\r\na\r\n", "+1\r\na\r\n", " 1\r\na\r\n", "1 \r\na\r\n", "-1\r\na\r\n", "\r\na\r\n",
        "10000000000000001\r\na\r\n", "1\r\nabc", "1\na\n", "1\r\na\n0\r\n\r\n", "0\r\nA: b\r\n\r\n"}) {
    EXPECT_EQ(Exchange(*server, chunked + body + "0\r\n\r\n").status, 400) << body;
  }
  EXPECT_EQ(Exchange(*server, chunked + "1;" + std::string(2000, 'a') + "\r\na\r\n0\r\n\r\n").status, 400);
  EXPECT_EQ(Exchange(*server, chunked + "1;a=b\r\nA\r\n000\r\n\r\n").body, "POST /x A");
  for (const char* head :
       {"GET / HTTP/1.1\r\nContent-Length : 9\r\n", "GET / HTTP/1.1\r\nContent-Length: 9\n",
        "GET / HTTP/1.1\r\nA: b\r\n c\r\n", "GET / HTTP/1.1\r\nA: b\rContent-Length: 9\r\n",
        "GET / HTTP/1.1\r\nContent-Length 9\r\n", "GET / HTTP/1.1\r\n: b\r\n", "GET / HTTP/1.1\r\nA: b\x01\r\n",
        "GET / HTTP/1.1\n", "GET /\x7f HTTP/1.1\r\n", "\x16\x03\x01"}) {
    TestClient client(server->address());
    client.Send(std::string(head) + "\r\nGET /hidden HTTP/1.1\r\n\r\n");
    EXPECT_EQ(client.Read().status, 400) << head;
    EXPECT_TRUE(client.Ended());
  }
}

TEST(HttpServer, RefusesTooMuch) {
  const Watchdog watchdog(60);
  HttpLimits limits;
  limits.body_bytes = 1000;
  const auto server = Serve(limits);
  const std::string body(1001, 'x');
  const std::string post = "POST /x HTTP/1.1\r\n";
  EXPECT_EQ(Exchange(*server, post + "Content-Length: 1000\r\n\r\n" + body.substr(1)).status, 200);
  EXPECT_EQ(Exchange(*server, post + "Content-Length: 1001\r\n\r\n" + body).status, 413);
  EXPECT_EQ(Exchange(*server, post + "Content-Length: 99999999999999999999\r\n\r\n").status, 413);
  EXPECT_EQ(Exchange(*server, post + "Transfer-Encoding: chunked\r\n\r\n3e9\r\n" + body + "\r\n0\r\n\r\n").status, 413);
  // Told so before it sends anything.
  EXPECT_EQ(Exchange(*server, post + "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n").status, 413);
  TestClient asks(server->address());
  asks.Send(post + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\n");
  asks.ReadUntil("100 Continue\r\n\r\n");
}

TEST(HttpServer, AHeadHasAnEnd) {
  const Watchdog watchdog(60);
  const auto server = Serve();
  for (const char* line : {"GET /", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\n"}) {
    TestClient client(server->address());
    client.Send(line);
    for (int i = 0; i < 100; ++i) client.Send(i % 2 != 0 || line[5] != ' ' ? std::string(4096, 'a') : "A: b\r\n");
    EXPECT_NE(client.Read().status, 200);
    EXPECT_TRUE(client.Ended());
  }
  EXPECT_EQ(Exchange(*server, "GET /" + std::string(60000, 'a') + " HTTP/1.1\r\n\r\n").status, 414);
}

TEST(HttpServer, ASlowClientIsNotWaitedForForEver) {
  const Watchdog watchdog(60);
  HttpLimits limits;
  limits.read = 200 * kMillisecondNs;
  limits.idle = 200 * kMillisecondNs;
  const auto server = Serve(limits);
  TestClient silent(server->address()), head(server->address()), body(server->address());
  head.Send("GET / HT");
  body.Send("POST /x HTTP/1.1\r\nContent-Length: 3\r\n\r\nab");
  EXPECT_TRUE(silent.Ended());
  EXPECT_TRUE(head.Ended());
  EXPECT_EQ(body.Read().status, 400);
  EXPECT_TRUE(body.Ended());
}

TEST(HttpServer, HasRoomForSoManyConnections) {
  const Watchdog watchdog(60);
  HttpLimits limits;
  limits.connections = 2;
  const auto server = Serve(limits);
  auto first = std::make_unique<TestClient>(server->address());
  TestClient second(server->address());
  for (TestClient* client : {first.get(), &second}) {
    client->Send("GET / HTTP/1.1\r\n\r\n");
    EXPECT_EQ(client->Read().status, 200);
  }
  TestClient third(server->address());
  EXPECT_EQ(third.Read().status, 503);
  EXPECT_TRUE(third.Ended());
  first.reset();
  third.Leave();
  int status = 0;
  while (status != 200) status = Exchange(*server, "GET / HTTP/1.1\r\n\r\n").status;
}

TEST(HttpServer, AStreamEndsWhenItsClientLeaves) {
  const Watchdog watchdog(60);
  std::atomic<int> ended = 0;
  HttpHandlers handlers{[&ended](HttpRequest&) {
                          HttpResponse response;
                          response.stream = [&ended](const HttpSend& send) {
                            while (send(std::string(10000, 'x'))) {
                            }
                            ++ended;
                          };
                          return response;
                        },
                        Refused};
  HttpLimits limits;
  limits.write = 200 * kMillisecondNs;
  const auto server = HttpServer::Start("127.0.0.1:0", limits, handlers).value();
  TestClient leaves(server->address()), sleeps(server->address());
  leaves.Get("/");
  leaves.ReadUntil("xxx");
  leaves.Leave();
  sleeps.Get("/");  // and never reads
  while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(HttpServer, AnOldClientGetsAStreamWithoutChunks) {
  const Watchdog watchdog(60);
  HttpHandlers handlers{[](HttpRequest&) {
                          HttpResponse response;
                          response.stream = [](const HttpSend& send) { (void)(send("ab") && send("cd")); };
                          return response;
                        },
                        Refused};
  const auto server = HttpServer::Start("127.0.0.1:0", {}, handlers).value();
  TestClient client(server->address());
  client.Send("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\nabcd"), Not(HasSubstr("chunked")));
  EXPECT_TRUE(client.Ended());
}

}  // namespace
}  // namespace lynx
