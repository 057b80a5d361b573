package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	// pauseMap is the ConfigMap, in the namespace that millrace is installed in,
	// whose annotation PauseAnnotation pauses it.
	pauseMap = "millrace"
	// PauseAnnotation lists what is paused: "evictions", or names of roles,
	// separated by commas.
	PauseAnnotation = "millrace.io/pause"
	// PauseEvictions stops every eviction and deletion of a pod and every NoExecute
	// taint, of whatever role.
	PauseEvictions = "evictions"

	// defaultNamespace is where millrace is installed, where nothing tells.
	defaultNamespace = "millrace"
	// podNamespace is where a pod finds its own. Source: Kubernetes, service
	// account token volumes.
	podNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
)

// Namespace returns the one that millrace is installed in.
func (a *API) Namespace() string {
	if a.cfg.Namespace != "" {
		return a.cfg.Namespace
	}
	if own, err := os.ReadFile(podNamespace); err == nil && len(own) > 0 {
		return strings.TrimSpace(string(own))
	}
	return defaultNamespace
}

// PauseKey names the ConfigMap that pauses.
func (a *API) PauseKey() event.Key { return event.Key{Namespace: a.Namespace(), Name: pauseMap} }

// Paused reads live what is paused; nothing, and no error, where the ConfigMap
// does not exist. It does not wait behind the requests of this process: whoever
// pauses wants that to count now.
func (a *API) Paused(ctx context.Context) ([]string, error) {
	m, err := a.pauseMap(ctx)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading what is paused: %w", err)
	}
	return pausedWords(m.Annotations), nil
}

func (a *API) pauseMap(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
	key := a.PauseKey()
	m, err := a.urgent.Resource(corev1.SchemeGroupVersion.WithResource(string(ConfigMaps))).
		Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	return m, Sort(err)
}

func pausedWords(annotations map[string]string) []string {
	var words []string
	for word := range strings.SplitSeq(annotations[PauseAnnotation], ",") {
		if word = strings.TrimSpace(word); word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return words
}

// SetPaused pauses or resumes one word and returns all that are paused then; the
// ConfigMap is made where it does not exist. Another's edit at the same moment is
// kept: ours is decided again on what it left. changed is false where everything
// was so already.
func (a *API) SetPaused(ctx context.Context, word string, pause bool) (words []string, changed bool, err error) {
	for ctx.Err() == nil {
		words, changed, err = a.trySetPaused(ctx, word, pause)
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrGone) {
			break
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return words, changed, fmt.Errorf("writing what is paused to ConfigMap %s: %w", a.PauseKey(), err)
	}
	return words, changed, nil
}

func (a *API) trySetPaused(ctx context.Context, word string, pause bool) (words []string, changed bool, err error) {
	key := a.PauseKey()
	m, err := a.pauseMap(ctx)
	absent := errors.Is(err, ErrNotFound)
	if err != nil && !absent {
		return nil, false, err
	}
	if !absent {
		words = pausedWords(m.Annotations)
	}
	if slices.Contains(words, word) == pause {
		return words, false, nil
	}
	if pause {
		words = append(words, word)
		slices.Sort(words)
	} else {
		words = slices.DeleteFunc(words, func(w string) bool { return w == word })
	}
	if absent {
		_, err = a.client.CoreV1().ConfigMaps(key.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: key.Name, Labels: map[string]string{"app.kubernetes.io/name": "millrace"},
			Annotations: map[string]string{PauseAnnotation: strings.Join(words, ",")},
		}}, metav1.CreateOptions{FieldManager: a.rest.UserAgent})
		return words, true, Sort(err)
	}
	v, err := version(m.ResourceVersion)
	if err != nil {
		return words, false, err
	}
	var value any // null takes the annotation away
	if len(words) > 0 {
		value = strings.Join(words, ",")
	}
	_, err = a.Writer(WriteOptions{}).Patch(ctx, Ref{Kind: ConfigMaps, Key: key, UID: string(m.UID), Version: v},
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{PauseAnnotation: value}}})
	return words, true, err
}

// TellPaused writes the Kubernetes event of a pause or its end, at the ConfigMap.
func (a *API) TellPaused(ctx context.Context, reason, message string) error {
	m, err := a.pauseMap(ctx)
	if err != nil {
		return fmt.Errorf("reading what the event is about: %w", err)
	}
	key, now := a.PauseKey(), metav1.NewTime(time.Now())
	_, err = a.client.CoreV1().Events(key.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: key.Name + ".", Namespace: key.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "ConfigMap", Namespace: key.Namespace, Name: key.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		},
		Reason: reason, Message: message, Type: corev1.EventTypeNormal, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: a.rest.UserAgent},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("writing event %s: %w", reason, Sort(err))
	}
	return nil
}
