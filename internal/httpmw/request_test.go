package httpmw

import (
	"bytes"
	"context"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

func TestKeepForm(t *testing.T) {
	for name, over := range map[string]bool{"during the request": false, "after the request": true} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			var form bytes.Buffer
			w := multipart.NewWriter(&form)
			part := must(w.CreateFormFile("upload", "a.txt"))
			_, _ = part.Write(make([]byte, 100_000))
			_ = w.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			original := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", &form)
			original.Header.Set("Content-Type", w.FormDataContentType())
			handled := original.WithContext(t.Context())
			if err := handled.ParseMultipartForm(0); err != nil {
				t.Fatal(err)
			}
			if over {
				cancel()
			}
			keepForm(original, handled)
			if kept := original.MultipartForm != nil; kept == over {
				t.Errorf("the server is to remove the files: %v", kept)
			}
			files, err := os.ReadDir(os.Getenv("TMPDIR"))
			if err != nil || len(files) == 0 != over {
				t.Errorf("%d files are left, %v", len(files), err)
			}
		})
	}
}
